//! A pool as an application has it: deadpool, in whose sessions it has set what it likes.

use std::error::Error as StdError;
use std::net::SocketAddr;
use std::sync::Arc;

use deadpool_postgres::{Hook, Manager, ManagerConfig, Object, RecyclingMethod};
use tenure::Error;
use tenure::store::Store;
use tenure_sql::postgres;
use tokio_postgres::{NoTls, SimpleQueryMessage};

const SETTINGS: &str = "SET default_transaction_isolation = 'serializable'; SET timezone = 'Asia/Tokyo';
    SET search_path = 'nowhere'; SET datestyle = 'German'; SET lock_timeout = '7s'";

pub(crate) struct Theirs(deadpool_postgres::Pool);

struct Database(deadpool_postgres::Pool);

impl postgres::Pool for Database {
    type Lent = Object;

    async fn lend(&self) -> Result<Object, Box<dyn StdError + Send + Sync>> {
        Ok(self.0.get().await?)
    }

    fn client(lent: &Object) -> &tokio_postgres::Client {
        lent
    }

    fn discard(lent: Object) {
        drop(Object::take(lent));
    }
}

impl Theirs {
    pub(crate) fn at(addr: SocketAddr, size: usize) -> Self {
        let mut config = tokio_postgres::Config::new();
        config.host(addr.ip().to_string()).port(addr.port()).user("tenure").dbname("postgres").application_name("tenure");
        let manager = Manager::from_config(config, NoTls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
        let set = Hook::async_fn(|client: &mut deadpool_postgres::ClientWrapper, _| {
            Box::pin(async move { client.batch_execute(SETTINGS).await.map_err(deadpool_postgres::HookError::Backend) })
        });
        Self(deadpool_postgres::Pool::builder(manager).max_size(size).post_create(set).build().unwrap())
    }

    pub(crate) async fn over(&self, parameters: &str) -> Result<Arc<dyn Store>, Error> {
        postgres::over(Database(self.0.clone()), parameters).await
    }

    pub(crate) async fn store(&self, table: &str, more: &str) -> Arc<dyn Store> {
        self.over(&format!("create=yes&table={table}{more}")).await.unwrap()
    }

    pub(crate) async fn lend(&self) -> Object {
        self.0.get().await.unwrap()
    }

    /// The first column of the first row.
    pub(crate) async fn ask(&self, sql: &str) -> String {
        let messages = self.lend().await.simple_query(sql).await.unwrap();
        let text = |message: &SimpleQueryMessage| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        };
        messages.iter().find_map(text).unwrap()
    }

    /// All that was set in the session.
    pub(crate) async fn settings(&self) -> String {
        self.ask("SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings WHERE source = 'session'").await
    }

    /// Gives a connection back in the midst of a transaction.
    pub(crate) async fn leave_open(&self, statements: &[String]) {
        let client = self.lend().await;
        client.batch_execute("BEGIN; SET LOCAL search_path = public").await.unwrap();
        for statement in statements {
            let _ = client.batch_execute(statement).await;
        }
    }
}
