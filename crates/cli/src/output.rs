//! One list, every form: tables are drawn from the same JSON that programs get.

use anstream::println;
use clap::{Args, ValueEnum};
use comfy_table::{ContentArrangement, Table, presets::NOTHING};
use het_wire::{API_VERSION, yaml};
use serde::Serialize;
use serde_json::{Value, json};

use crate::fail::{Fail, code};

/// The form in which something is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Form {
    Table,
    Wide,
    Json,
    Jsonl,
    Yaml,
    Name,
    Csv,
}

/// Of commands that only list something.
#[derive(Debug, Args)]
pub struct ListArgs {
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

/// A column of the table form: title, JSON field, and whether only `wide` shows it.
pub struct Column(pub &'static str, pub &'static str, pub Shown);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    Always,
    Wide,
}

/// Prints a list of objects.
pub fn list(kind: &str, items: &[Value], columns: &[Column], form: Form) {
    match form {
        Form::Table | Form::Wide => table(items, columns, form),
        Form::Json => {
            let list = json!({ "apiVersion": API_VERSION, "kind": kind, "items": items });
            println!("{list:#}");
        }
        Form::Jsonl => items.iter().for_each(|item| println!("{item}")),
        Form::Yaml => {
            let list = json!({ "apiVersion": API_VERSION, "kind": kind, "items": items });
            println!("{}", yaml::to_text(&list).trim_end());
        }
        Form::Name => {
            let id = columns.first().map_or("name", |Column(_, field, _)| field);
            items.iter().for_each(|item| println!("{}", cell(&item[id])));
        }
        Form::Csv => csv(items, columns),
    }
}

/// Prints one object; `human` draws the table form.
pub fn object(value: &Value, form: Form, human: impl FnOnce()) {
    match form {
        Form::Table | Form::Wide => human(),
        Form::Json => println!("{value:#}"),
        Form::Jsonl => println!("{value}"),
        Form::Yaml => println!("{}", yaml::to_text(value).trim_end()),
        Form::Name => println!("{}", cell(&value["id"])),
        Form::Csv => {
            let fields = value.as_object().map(|object| object.keys().collect::<Vec<_>>());
            for key in fields.unwrap_or_default() {
                println!("{key},{}", cell(&value[key]));
            }
        }
    }
}

/// A borderless table that fits the terminal.
pub fn plain_table(titles: &[&str]) -> Table {
    let mut table = Table::new();
    // A terminal of no width says that nobody told it.
    let arranged = match table.width() {
        Some(0) => ContentArrangement::Disabled,
        _ => ContentArrangement::Dynamic,
    };
    table.load_style(NOTHING).set_content_arrangement(arranged);
    table.set_header(titles);
    table
}

/// A table without trailing blanks.
pub fn print_table(table: &Table) {
    for line in table.lines() {
        println!("{}", line.trim_end());
    }
}

fn table(items: &[Value], columns: &[Column], form: Form) {
    let shown: Vec<&Column> = columns
        .iter()
        .filter(|Column(_, _, shown)| *shown == Shown::Always || form == Form::Wide)
        .collect();
    let titles: Vec<&str> = shown.iter().map(|Column(title, _, _)| *title).collect();
    let mut table = plain_table(&titles);
    for item in items {
        table.add_row(shown.iter().map(|Column(_, field, _)| match form {
            Form::Wide => cell(&item[*field]),
            _ => short_cell(&item[*field]),
        }));
    }
    print_table(&table);
}

/// Things that a cell names before it counts the rest: a gang may have hundreds of devices.
const NAMED_MAX: usize = 4;

fn short_cell(value: &Value) -> String {
    match value {
        Value::Array(items) if items.len() > NAMED_MAX => {
            let named: Vec<String> = items[..NAMED_MAX - 1].iter().map(cell).collect();
            format!("{}, … {} in all", named.join(", "), items.len())
        }
        other => cell(other),
    }
}

fn csv(items: &[Value], columns: &[Column]) {
    let mut writer = csv::Writer::from_writer(std::io::stdout());
    let titles = columns.iter().map(|Column(_, field, _)| *field);
    // A closed pipe leaves nobody to tell.
    let _ = writer.write_record(titles);
    for item in items {
        let _ = writer.write_record(columns.iter().map(|Column(_, field, _)| cell(&item[*field])));
    }
    let _ = writer.flush();
}

/// A value in a table: unknown is a dash, never zero.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "–".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// Does something to each of several things, also where it cannot be done to some, and shows what
/// came of it. Returns the last code that is not 0.
pub fn all<I, T: Serialize>(
    wanted: impl IntoIterator<Item = I>,
    (kind, columns): (&str, &[Column]),
    form: Form,
    mut operation: impl FnMut(I) -> Result<Vec<T>, Fail>,
) -> u8 {
    let mut items = Vec::new();
    let mut code = code::OK;
    for one in wanted {
        match operation(one) {
            Ok(rows) => items.extend(rows.iter().filter_map(|row| serde_json::to_value(row).ok())),
            Err(fail) => {
                fail.print();
                code = fail.code();
            }
        }
    }
    if form != Form::Table || !items.is_empty() {
        list(kind, &items, columns, form);
    }
    code
}
