//! Scripts: one command a line, words as in a shell.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// Splits a line into words. Blanks part words; `'…'` keeps everything, `"…"` and `\` the next character; `#` at the
/// beginning of a word ends the line.
///
/// # Errors
/// A quotation that does not end.
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
        assert!(words(b"'a").is_err() && words(b"\"a").is_err() && words(b"a\\").is_err());
    }
}
