//! Scripts: one command per line, with words as in a shell.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// Splits a line into words.
///
/// Blanks separate words; `'…'` quotes everything, `"…"` and `\` quote the next character; `$'…'`
/// has POSIX escapes for bytes that cannot be typed; `#` at the start of a word begins a comment.
///
/// # Errors
/// An unterminated quotation, or an unknown escape.
pub(crate) fn words(line: &[u8]) -> Result<Vec<OsString>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut bytes = line.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b' ' | b'\t' | b'\r' => words.extend(word.take()),
            b'#' if word.is_none() => break,
            b'\\' => {
                let next = bytes.next().ok_or("a backslash at the end of the line")?;
                word.get_or_insert_default().push(next);
            }
            b'\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match bytes.next().ok_or("a quotation that does not end")? {
                        b'\'' => break,
                        byte => word.push(byte),
                    }
                }
            }
            b'$' if bytes.clone().next() == Some(b'\'') => {
                bytes.next();
                escaped(&mut bytes, word.get_or_insert_default())?;
            }
            b'"' => {
                let word = word.get_or_insert_default();
                loop {
                    match bytes.next().ok_or("a quotation that does not end")? {
                        b'"' => break,
                        b'\\' => word.push(bytes.next().ok_or("a quotation that does not end")?),
                        byte => word.push(byte),
                    }
                }
            }
            byte => word.get_or_insert_default().push(byte),
        }
    }
    words.extend(word);
    Ok(words.into_iter().map(OsString::from_vec).collect())
}

/// Parses the rest of a quotation that began with `$'`.
fn escaped(bytes: &mut (impl Iterator<Item = u8> + Clone), word: &mut Vec<u8>) -> Result<(), &'static str> {
    const ENDLESS: &str = "a quotation that does not end";
    loop {
        let byte = match bytes.next().ok_or(ENDLESS)? {
            b'\'' => return Ok(()),
            b'\\' => match bytes.next().ok_or(ENDLESS)? {
                byte @ (b'\\' | b'\'' | b'"') => byte,
                b'a' => 0x07,
                b'b' => 0x08,
                b'e' => 0x1b,
                b'f' => 0x0c,
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'v' => 0x0b,
                b'x' => number(bytes, 16, 2, 0).ok_or("\\x without hexadecimal digits")?,
                digit @ b'0'..=b'7' => {
                    number(bytes, 8, 2, u32::from(digit - b'0')).ok_or("a byte beyond \\377")?
                }
                _ => return Err("a backslash that means nothing within $'…'"),
            },
            byte => byte,
        };
        word.push(byte);
    }
}

/// Parses up to `most` digits, which continue `value`, as a byte. `None` if a hexadecimal escape
/// has no digits, or the result exceeds a byte.
fn number(bytes: &mut (impl Iterator<Item = u8> + Clone), base: u32, most: usize, value: u32) -> Option<u8> {
    let digits: Vec<u32> =
        bytes.clone().map_while(|byte| char::from(byte).to_digit(base)).take(most).collect();
    if digits.is_empty() && base == 16 {
        return None;
    }
    bytes.by_ref().take(digits.len()).for_each(drop);
    u8::try_from(digits.iter().fold(value, |value, digit| value * base + digit)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str) -> Vec<String> {
        words(line.as_bytes()).unwrap().into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn words_are_those_of_a_shell() {
        assert_eq!(split("  put a\tb "), ["put", "a", "b"]);
        assert_eq!(split(r#"'a b' "c d" e\ f '' "\"""#), ["a b", "c d", "e f", "", "\""]);
        assert_eq!(split("mkdir /a#b # and not this"), ["mkdir", "/a#b"]);
        assert_eq!(split("# nothing"), [""; 0]);
        let bytes = |line: &str| {
            let words: Vec<Vec<u8>> =
                words(line.as_bytes()).unwrap().into_iter().map(OsString::into_vec).collect();
            words.join(&b'|')
        };
        assert_eq!(bytes(r"$'a\x1b]0;\e\007\xffz\'\\ b\n'"), b"a\x1b]0;\x1b\x07\xffz'\\ b\n");
        assert_eq!(bytes(r"$'\0014\x4g' $ $x a$'b'c"), b"\x014\x04g|$|$x|abc");
        for wrong in [r"$'a", r"$'\", r"$'\x'", r"$'\q'", r"$'\777'"] {
            assert!(words(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert!(words(b"'a").is_err() && words(b"\"a").is_err() && words(b"a\\").is_err());
    }
}
