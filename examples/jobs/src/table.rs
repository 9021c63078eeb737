//! A table on standard output.

/// A table: the first column is text, the others are numbers.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Begins a table.
    pub fn new(heads: &[&str]) -> Self {
        Self { rows: vec![heads.iter().map(ToString::to_string).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Prints it.
    pub fn print(&self) {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| self.rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let cell = |(column, text): (usize, &String)| match column {
                0 => format!("{text:<width$}", width = widths[0]),
                _ => format!("  {text:>width$}", width = widths[column]),
            };
            println!("{}", row.iter().enumerate().map(cell).collect::<String>().trim_end());
        }
    }
}
