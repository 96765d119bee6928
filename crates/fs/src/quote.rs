//! Names from a volume, for messages.

/// Makes bytes from a volume safe to print: valid UTF-8 without control characters stays, everything else, and the
/// backslash, is escaped. Names may hold terminal escapes.
pub fn quote(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            // Beside the C0 and C1 controls: marks that reorder or hide text.
            let hidden = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
            if c == '\\' || c.is_control() || hidden {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_could_steer_a_terminal_are_escaped() {
        assert_eq!(quote("grün".as_bytes()), "grün");
        assert_eq!(quote(b"a\x1b[31mred\n"), "a\\u{1b}[31mred\\n");
        assert_eq!(quote(b"\xff\\x"), "\\xff\\\\x");
        assert_eq!(quote("a\u{202e}b".as_bytes()), "a\\u{202e}b");
    }
}
