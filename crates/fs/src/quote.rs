//! Quoting names from a volume for messages.

use std::borrow::Cow;

/// Makes bytes from a volume safe to print, because names may contain terminal escapes. Valid UTF-8
/// without control characters is kept; everything else, and the backslash, is escaped.
pub fn quote(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\\' || is_harmful(c) {
                out.extend(c.escape_default());
            } else {
                out.push(c);
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// Like [`quote`], for a whole message: line breaks and backslashes are kept.
pub fn printable(text: &str) -> Cow<'_, str> {
    let harmful = |c: char| c != '\n' && is_harmful(c);
    if !text.contains(harmful) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match harmful(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out.into()
}

/// Whether a character may control a terminal, or reorder or hide text.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_could_steer_a_terminal_are_escaped() {
        assert_eq!(quote("grün".as_bytes()), "grün");
        assert_eq!(quote(b"a\x1b[31mred\n"), "a\\u{1b}[31mred\\n");
        assert_eq!(quote(b"\xff\\x"), "\\xff\\\\x");
        assert_eq!(quote("a\u{202e}b".as_bytes()), "a\\u{202e}b");
        assert_eq!(quote("a\u{61c}b".as_bytes()), "a\\u{61c}b");
        assert_eq!(printable("C:\\x\nand \u{9b}m\x07"), "C:\\x\nand \\u{9b}m\\u{7}");
    }
}
