//! Words of command lines that a user may copy into a shell.

use extant_fs::printable;
use std::borrow::Cow;

/// Quotes a word for a shell. A word that a terminal would not show as it is, or might obey, is put
/// in `$'…'`, which bash, ksh and zsh support.
pub(crate) fn quoted(word: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./=,:+".contains(byte);
    match std::str::from_utf8(word) {
        Ok(text) if !word.is_empty() && word.iter().all(is_plain) => text.to_owned(),
        Ok(text) if text.chars().all(is_typed) => format!("'{}'", text.replace('\'', "'\\''")),
        _ => escaped(word),
    }
}

/// A word in `$'…'`.
pub(crate) fn escaped(word: &[u8]) -> String {
    let mut text = String::from("$'");
    for chunk in word.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' | '\'' => text.extend(['\\', c]),
                c if is_typed(c) => text.push(c),
                c => push_bytes(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        push_bytes(&mut text, chunk.invalid());
    }
    text + "'"
}

fn push_bytes(text: &mut String, bytes: &[u8]) {
    bytes.iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
}

/// Whether a character can be typed at a prompt, rather than quoted by its code.
pub(crate) fn is_typed(c: char) -> bool {
    c != '\n' && matches!(printable(c.encode_utf8(&mut [0; 4])), Cow::Borrowed(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_the_words_that_were_quoted() {
        for (word, wanted) in [
            (&b"/dev/sda1"[..], "/dev/sda1"),
            (b"", "''"),
            (b"my disk.img", "'my disk.img'"),
            (b"it's $HOME", r"'it'\''s $HOME'"),
            (b"a\nb\x1b\xff'", r"$'a\x0ab\x1b\xff\''"),
        ] {
            assert_eq!(quoted(word), wanted);
        }
    }
}
