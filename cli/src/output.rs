//! How data is printed: a table for people, JSON and YAML of the API types, names for pipes. Rendering is pure.

use std::io::Write;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;

use crate::exit::CommandError;

/// The output formats.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Format {
    /// Columns for people
    #[default]
    Table,
    /// The API types
    Json,
    /// The API types
    Yaml,
    /// One name a line
    Name,
}

/// What a command has to show, in every format.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// For JSON and YAML.
    pub value: Value,
    /// For people.
    pub table: Table,
    /// For pipes.
    pub names: Vec<String>,
}

/// Columns for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Column titles, in capitals; empty for a table without.
    pub head: Vec<&'static str>,
    /// As many cells in each as there are titles.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table of titles.
    pub fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new() }
    }

    /// Label and value lines, without titles.
    pub fn fields<const N: usize>(fields: [(&str, String); N]) -> Self {
        Self {
            head: Vec::new(),
            rows: fields.into_iter().map(|(label, value)| vec![format!("{label}:"), value]).collect(),
        }
    }

    /// Adds a row. A blank cell becomes `-`, so that columns stay apart and nothing reads as forgotten.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows
            .push(cells.into_iter().map(|cell| if cell.trim().is_empty() { "-".to_owned() } else { cell }).collect());
    }

    fn render(&self) -> String {
        let head: Vec<String> = self.head.iter().map(|title| (*title).to_owned()).collect();
        let lines: Vec<&Vec<String>> =
            std::iter::once(&head).filter(|head| !head.is_empty()).chain(&self.rows).collect();
        let columns = lines.iter().map(|line| line.len()).max().unwrap_or(0);
        let width = |column: usize| {
            lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for line in lines {
            let mut row = String::new();
            for (cell, width) in line.iter().zip(&widths) {
                // A line break inside a cell would break the row.
                let cell = cell.replace(['\n', '\r', '\t'], " ");
                row.push_str(&format!("{cell:width$}   "));
            }
            text.push_str(row.trim_end());
            text.push('\n');
        }
        text
    }
}

impl View {
    /// A view of one API value.
    ///
    /// # Errors
    /// [`CommandError::Failed`] if it cannot be encoded.
    pub fn of<T: Serialize>(value: &T, table: Table, names: Vec<String>) -> Result<Self, CommandError> {
        let value = serde_json::to_value(value).map_err(|error| anyhow::Error::from(error).context("encode output"))?;
        Ok(Self { value, table, names })
    }

    /// The text in a format, ending with a line break unless empty.
    ///
    /// # Errors
    /// [`CommandError::Failed`] if it cannot be encoded.
    pub fn render(&self, format: Format) -> Result<String, CommandError> {
        let mut text = match format {
            Format::Table => self.table.render(),
            Format::Json => serde_json::to_string_pretty(&self.value)
                .map_err(|error| anyhow::Error::from(error).context("encode output"))?,
            Format::Yaml => yaml(&self.value)?,
            Format::Name => self.names.join("\n"),
        };
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        Ok(text)
    }

    /// Prints to stdout. A reader that went away is no error.
    ///
    /// # Errors
    /// [`CommandError::Failed`].
    pub fn print(&self, format: Format) -> Result<(), CommandError> {
        write_out(&self.render(format)?)
    }
}

/// The value as YAML.
///
/// # Errors
/// [`CommandError::Failed`] if it cannot be encoded.
pub fn yaml(value: &Value) -> Result<String, CommandError> {
    serde_saphyr::to_string(value).map_err(|error| anyhow::anyhow!("encode output: {error}").into())
}

/// Writes data to stdout. A reader that went away is no error.
///
/// # Errors
/// [`CommandError::Failed`].
pub fn write_out(text: &str) -> Result<(), CommandError> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::from(error).context("write output").into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn view() -> View {
        let mut table = Table::new(&["NAME", "READY", "BLOCKED-BY"]);
        table.row(["shared-1".into(), "True".into(), String::new()]);
        table.row(["b".into(), "False".into(), "PodsNotReady: 1 of\n2".into()]);
        View {
            value: json!({"kind": "List", "items": [1]}),
            table,
            names: vec!["cell/shared-1".into(), "cell/b".into()],
        }
    }

    #[test]
    fn each_format_is_what_it_was() {
        let render = |format| view().render(format).unwrap();
        assert_eq!(
            render(Format::Table),
            "NAME       READY   BLOCKED-BY\nshared-1   True    -\nb          False   PodsNotReady: 1 of 2\n"
        );
        assert_eq!(render(Format::Json), "{\n  \"items\": [\n    1\n  ],\n  \"kind\": \"List\"\n}\n");
        assert_eq!(render(Format::Name), "cell/shared-1\ncell/b\n");
        let back: Value = serde_saphyr::from_str(&render(Format::Yaml)).unwrap();
        assert_eq!(back, view().value);
    }

    #[test]
    fn fields_stand_without_titles() {
        let view =
            View { table: Table::fields([("Cell", "a".into()), ("Last number", "7".into())]), ..View::default() };
        assert_eq!(view.render(Format::Table).unwrap(), "Cell:          a\nLast number:   7\n");
    }
}
