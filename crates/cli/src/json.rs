//! Machine-readable output.

use crate::failure::Failure;
use crate::output::Output;
use extant_format::{FileKind, Timestamp};
use extant_fs::Lost;
use serde::{Serialize, Serializer};
use serde_json::ser::{CharEscape, CompactFormatter, Formatter, PrettyFormatter};
use std::io;

/// Prints one value, on several lines.
pub(crate) fn print(out: &mut Output, value: &impl Serialize) -> Result<(), Failure> {
    write(out, value, PrettyFormatter::new())?;
    out.write(b"\n")
}

/// Prints one value without a newline.
pub(crate) fn print_compact(out: &mut Output, value: &impl Serialize) -> Result<(), Failure> {
    write(out, value, CompactFormatter)
}

fn write(out: &mut Output, value: &impl Serialize, formatter: impl Formatter) -> Result<(), Failure> {
    let mut serializer = serde_json::Serializer::with_formatter(out.as_write()?, Harmless(formatter));
    value.serialize(&mut serializer).map_err(|error| Failure::stdout(error.into()))
}

/// Escapes characters that JSON allows but that control a terminal: `DEL`, the C1 controls, and
/// marks that reorder text.
struct Harmless<F>(F);

macro_rules! forward {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {
        $(fn $name<W: ?Sized + io::Write>(&mut self, writer: &mut W $(, $arg: $type)*) -> io::Result<()> {
            self.0.$name(writer $(, $arg)*)
        })*
    };
}

impl<F: Formatter> Formatter for Harmless<F> {
    forward! {
        begin_array();
        end_array();
        begin_array_value(first: bool);
        end_array_value();
        begin_object();
        end_object();
        begin_object_key(first: bool);
        begin_object_value();
        end_object_value();
        write_char_escape(escape: CharEscape);
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, text: &str) -> io::Result<()> {
        let mut rest = text;
        while let Some((at, c)) = rest.char_indices().find(|&(_, c)| is_obeyed(c)) {
            writer.write_all(&rest.as_bytes()[..at])?;
            write!(writer, "\\u{:04x}", c as u32)?;
            rest = &rest[at + c.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}

/// Whether a terminal obeys a character. All of these are in the basic plane, so one escape is
/// enough.
fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// A name or value of arbitrary bytes: a string, or `{"hex": …}` if it is not UTF-8.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        match std::str::from_utf8(self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("hex", &hex(self.0))?;
                map.end()
            }
        }
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Formats a UUID like `blkid`.
pub(crate) fn uuid(id: &[u8; 16]) -> String {
    let id = hex(id);
    [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]].join("-")
}

/// An unreadable part of a file.
#[derive(Serialize)]
pub(crate) struct JsonLost {
    offset: u64,
    bytes: u64,
    error: String,
}

impl JsonLost {
    pub(crate) fn new(lost: &Lost) -> Self {
        Self { offset: lost.offset, bytes: lost.bytes, error: lost.error.to_string() }
    }
}

/// Seconds since 1970 and nanoseconds.
#[derive(Serialize)]
pub(crate) struct Time {
    seconds: i64,
    nanos: u32,
}

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        Self { seconds: time.seconds, nanos: time.nanos }
    }
}

/// A file's kind as one word.
pub(crate) fn kind_name(kind: Option<FileKind>) -> &'static str {
    match kind {
        None => "unknown",
        Some(FileKind::Regular) => "file",
        Some(FileKind::Directory) => "directory",
        Some(FileKind::Symlink) => "symlink",
        Some(FileKind::CharDevice) => "char-device",
        Some(FileKind::BlockDevice) => "block-device",
        Some(FileKind::Fifo) => "fifo",
        Some(FileKind::Socket) => "socket",
    }
}
