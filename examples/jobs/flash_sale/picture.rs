//! The outcome as a picture, as plain text.

use std::fmt::Write as _;

use crate::{ROWS, Sale};

const WIDTH: i64 = 860;
/// Where the bars begin, and their longest.
const LEFT: i64 = 190;
const LONGEST: i64 = 560;
const ROW: i64 = 57;
const TOP: i64 = 60;
const TEXT: &str = "#1f2933";
const TWICE: &str = "#b4402a";
const AT_ONCE: &str = "#d9a441";
const DEAD: &str = "#7a8594";
const GOOD: &str = "#0b6e4f";

/// Draws three bars for each lock: units sold twice, orders by two at once, and units that nobody could
/// buy.
pub(crate) fn draw(stock: i64, sales: &[Sale]) -> String {
    let height = TOP + ROW * i64::try_from(sales.len()).unwrap_or(0) + 16;
    let mut svg = String::new();
    let mut line = |text: std::fmt::Arguments<'_>| {
        let _ = writeln!(svg, "{text}");
    };
    line(format_args!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">"#
    ));
    line(format_args!(r##"<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>"##));
    line(format_args!(
        r#"<text x="12" y="26" font-size="16" font-weight="bold" fill="{TEXT}">A flash sale of {stock} units, with buyers that crash and stall</text>"#
    ));
    for (x, color, text) in
        [(LEFT, TWICE, "sold twice"), (LEFT + 120, AT_ONCE, "held by two at once"), (LEFT + 300, DEAD, "could not be sold")]
    {
        line(format_args!(
            r#"<rect x="{x}" y="36" width="12" height="12" fill="{color}"/><text x="{}" y="47" fill="{TEXT}">{text}</text>"#,
            x + 17
        ));
    }
    let most = sales.iter().map(|sale| sale.audit.twice.max(sale.audit.at_once).max(sale.audit.dead)).max().unwrap_or(0).max(1);
    for (at, sale) in (0_i64..).zip(sales) {
        let (name, y) = (ROWS[sale.row].name, TOP + ROW * at);
        let weight = if name.starts_with("tenure") { r#" font-weight="bold""# } else { "" };
        line(format_args!(r#"<text x="{}" y="{}" text-anchor="end" fill="{TEXT}"{weight}>{name}</text>"#, LEFT - 8, y + 31));
        for (y, number, color) in
            [(y + 2, sale.audit.twice, TWICE), (y + 19, sale.audit.at_once, AT_ONCE), (y + 36, sale.audit.dead, DEAD)]
        {
            let (width, color) = if number == 0 { (2, GOOD) } else { ((number * LONGEST / most).max(2), color) };
            line(format_args!(r#"<rect x="{LEFT}" y="{y}" width="{width}" height="16" fill="{color}"/>"#));
            line(format_args!(r#"<text x="{}" y="{}" fill="{TEXT}">{number}</text>"#, LEFT + width + 5, y + 13));
        }
    }
    svg.push_str("</svg>\n");
    svg
}
