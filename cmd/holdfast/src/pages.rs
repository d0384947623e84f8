//! Lists that come in pages.

use anyhow::Result;
use serde_json::Value;

use crate::output::Format;
use crate::settings::Settings;
use crate::table::table;

/// Rows of a page.
pub(crate) const PAGE_SIZE: u32 = 1_000;

/// Prints all items of a list: as one table, or as a line of JSON each, as soon as its page is there. `next_page` returns
/// the items of the page with that token, and the token of the page after it; empty ones mean the first and none.
pub(crate) async fn print_list<T, const N: usize>(
    settings: &Settings,
    heading: [&str; N],
    next_page: impl AsyncFn(String) -> Result<(Vec<T>, String)>,
    row: impl Fn(&T) -> [String; N],
    value: impl Fn(&T) -> Value,
) -> Result<()> {
    let (mut rows, mut page_token) = (Vec::new(), String::new());
    loop {
        let (items, token) = next_page(page_token).await?;
        for item in &items {
            match settings.format {
                Format::Text => rows.push(row(item)),
                Format::Json => settings.format.print(String::new, || value(item))?,
            }
        }
        page_token = token;
        if page_token.is_empty() {
            break;
        }
    }
    if settings.format == Format::Json {
        return Ok(());
    }
    settings.format.print(|| table(heading, &rows), Default::default)
}
