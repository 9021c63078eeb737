//! The guarded table, and the log by which the outcome is judged.

use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls};

use crate::{Args, Error};

const CREATE: &str = "
DROP TABLE IF EXISTS stock, allocations;
CREATE TABLE stock (id bigint PRIMARY KEY, units bigint NOT NULL, fence bigint NOT NULL DEFAULT 0);
-- Each write that was accepted, in the order of the writes to its item.
CREATE TABLE allocations (seq bigserial PRIMARY KEY, item bigint NOT NULL, fence bigint NOT NULL)";

/// Leaves the fence, and reads. From then on no earlier holder can write.
const READ: &str = "UPDATE stock SET fence = $2 WHERE id = $1 AND fence <= $2 RETURNING units";
const WRITE: &str = "
WITH written AS (UPDATE stock SET units = $3 WHERE id = $1 AND fence = $2 RETURNING id)
INSERT INTO allocations (item, fence) SELECT id, $2 FROM written";

/// The same as a program has it that trusts its lock.
const READ_UNFENCED: &str = "SELECT units FROM stock WHERE id = $1 AND $2 > 0";
const WRITE_UNFENCED: &str = "
WITH written AS (UPDATE stock SET units = $3 WHERE id = $1 RETURNING id)
INSERT INTO allocations (item, fence) SELECT id, $2 FROM written";

/// Accepted writes after one with a larger fence.
const STALE: &str = "
SELECT count(*) FROM (
  SELECT fence, max(fence) OVER (PARTITION BY item ORDER BY seq) AS largest FROM allocations
) AS writes WHERE fence < largest";

pub(crate) struct Stock {
    client: Client,
    fenced: bool,
}

pub(crate) struct Audit {
    pub(crate) units: i64,
    pub(crate) stale: i64,
}

impl Stock {
    /// Makes the tables anew.
    pub(crate) async fn create(args: &Args) -> Result<Self, Error> {
        let stock = Self::connect(args).await?;
        stock.client.batch_execute(CREATE).await?;
        stock.client.execute("INSERT INTO stock SELECT id, 0 FROM generate_series(1::bigint, $1) id", &[&args.items]).await?;
        Ok(stock)
    }

    pub(crate) async fn connect(args: &Args) -> Result<Self, Error> {
        let url = args.postgres.as_deref().ok_or("no --postgres")?;
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        Ok(Self { client, fenced: !args.no_fence })
    }

    /// Number of allocated units of an item; `None` if a later holder was here.
    pub(crate) async fn read(&self, item: i64, fence: i64) -> Result<Option<i64>, Error> {
        let statement = if self.fenced { READ } else { READ_UNFENCED };
        let rows = self.client.query_typed(statement, &[(&item, Type::INT8), (&fence, Type::INT8)]).await?;
        Ok(rows.first().map(|row| row.get(0)))
    }

    /// Writes the number of units. Returns false if a later holder was here.
    pub(crate) async fn write(&self, item: i64, fence: i64, units: i64) -> Result<bool, Error> {
        let statement = if self.fenced { WRITE } else { WRITE_UNFENCED };
        let values: &[(&(dyn tokio_postgres::types::ToSql + Sync), Type)] =
            &[(&item, Type::INT8), (&fence, Type::INT8), (&units, Type::INT8)];
        Ok(self.client.execute_typed(statement, values).await? == 1)
    }

    pub(crate) async fn audit(&self) -> Result<Audit, Error> {
        let units = self.client.query_one("SELECT coalesce(sum(units), 0)::bigint FROM stock", &[]).await?.get(0);
        Ok(Audit { units, stale: self.client.query_one(STALE, &[]).await?.get(0) })
    }
}
