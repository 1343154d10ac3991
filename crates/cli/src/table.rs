//! Columns for people: aligned by characters, no lines, a header.

use crate::out::printable;

/// Renders rows below a header; the last column is not padded.
pub(crate) fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    let header: Vec<String> = header.iter().map(|&cell| cell.to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(&header)
        .chain(rows)
        .map(|row| row.iter().map(|cell| printable(cell)).collect())
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["äö".to_owned(), "x".to_owned()], vec!["a\u{1b}[2J".to_owned(), "y".to_owned()]];
        expect_test::expect![[r"
            NAME   S
            äö     x
            a�[2J  y"]]
        .assert_eq(&render(&["NAME", "S"], &rows));
    }
}
