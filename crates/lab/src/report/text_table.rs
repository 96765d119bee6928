//! Tables of words and numbers, as aligned columns or as Markdown.

use serde_json::Value;
use std::fmt::Write;

/// The format of the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Aligned columns.
    #[default]
    Text,
    /// Markdown tables, as GitHub and most other renderers accept them.
    Markdown,
    /// One JSON object with unrounded values.
    Json,
}

impl Format {
    /// Renders results as tables or as JSON. `tables` gets true for Markdown.
    pub(crate) fn render(self, tables: impl FnOnce(bool) -> String, json: impl FnOnce() -> Value) -> String {
        match self {
            Self::Text => tables(false),
            Self::Markdown => tables(true),
            Self::Json => format!("{:#}\n", json()),
        }
    }
}

/// The cells of a row.
pub(crate) type TableRow = Vec<String>;

/// Appends a table whose first four columns are words.
pub(crate) fn table(out: &mut String, markdown: bool, columns: &[&str], rows: &[TableRow]) {
    if markdown { markdown_table(out, columns, rows) } else { text_table(out, columns, rows) }
}

fn text_table(out: &mut String, columns: &[&str], rows: &[TableRow]) {
    let width = |n: usize| {
        let cells = rows.iter().map(|row| row[n].chars().count());
        cells.max().unwrap_or(0).max(columns[n].chars().count())
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut line = |row: &[&str]| {
        let mut text = String::from(" ");
        for (n, cell) in row.iter().enumerate() {
            let pad = widths[n];
            let _ = if n < 4 { write!(text, " {cell:<pad$}") } else { write!(text, "  {cell:>pad$}") };
        }
        out.push_str(text.trim_end());
        out.push('\n');
    };
    line(columns);
    rows.iter().for_each(|row| line(&row.iter().map(String::as_str).collect::<Vec<_>>()));
}

fn markdown_table(out: &mut String, columns: &[&str], rows: &[TableRow]) {
    let _ = writeln!(out, "| {} |", columns.join(" | "));
    let _ = writeln!(
        out,
        "|{}|",
        ["---"; 4].into_iter().chain(vec!["--:"; columns.len() - 4]).collect::<Vec<_>>().join("|")
    );
    for row in rows {
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
}
