//! Parses manifests in the format of mtree(5), as bsdtar and the BSDs write them.

use crate::tree::Kind;
use extant_format::Timestamp;
use extant_fs::quote;

/// A line about a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The number of the line, counted from 1.
    pub(super) line: usize,
    /// The path, as names below the root without `.` and `..`.
    pub(super) path: Vec<u8>,
    pub(super) keys: Keys,
}

/// The keywords of a file; `None` where one is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Keys {
    pub(super) kind: Option<Kind>,
    pub(super) mode: Option<u16>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) uname: Option<Vec<u8>>,
    pub(super) gname: Option<Vec<u8>>,
    pub(super) time: Option<Timestamp>,
    pub(super) size: Option<u64>,
    pub(super) link: Option<Vec<u8>>,
    /// Major and minor number.
    pub(super) device: Option<(u32, u32)>,
    /// A file of the host with the contents.
    pub(super) contents: Option<Vec<u8>>,
    /// The file need not exist.
    pub(super) optional: bool,
    /// The file must exist, and is not changed.
    pub(super) nochange: bool,
}

/// Keywords without effect here: checksums, values that a volume sets itself, and values that are
/// only used for comparisons. File flags are ignored, as in archives.
const IGNORED: [&str; 27] = [
    "cksum",
    "flags",
    "ignore",
    "inode",
    "md5",
    "md5digest",
    "nlink",
    "resdevice",
    "ripemd160digest",
    "rmd160",
    "rmd160digest",
    "sha1",
    "sha1digest",
    "sha256",
    "sha256digest",
    "sha384",
    "sha384digest",
    "sha512",
    "sha512digest",
    "tags",
    "all",
    "sha1sum",
    "sha256sum",
    "sha512sum",
    "md5sum",
    "acl",
    "none",
];

/// Parses a manifest.
///
/// # Errors
/// The number of the first invalid line, and what is wrong with it.
pub(super) fn parse(text: &[u8]) -> Result<Vec<Entry>, (usize, String)> {
    let mut entries = Vec::new();
    let mut defaults = Keys::default();
    // The directory that names without a slash refer to.
    let mut directory: Vec<Vec<u8>> = Vec::new();
    for (line, text) in joined(text) {
        let wrong = |problem| (line, problem);
        let mut words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let Some(first) = words.next() else { continue };
        match first {
            b"/set" => words.try_for_each(|word| defaults.set(word)).map_err(wrong)?,
            b"/unset" => words.try_for_each(|word| defaults.unset(word)).map_err(wrong)?,
            b".." => drop(directory.pop()),
            name if name.starts_with(b"/")
                && !name[1..].contains(&b'/')
                && name != b"/"
                && is_command(name) =>
            {
                return Err(wrong(format!("{} is neither /set nor /unset", quote(name))));
            }
            name => {
                let name = unescaped(name).map_err(wrong)?;
                let mut keys = defaults.clone();
                let words: Vec<&[u8]> = words.collect();
                // A name in the line overrides a number from `/set`.
                if words.iter().any(|word| word.starts_with(b"uname=")) {
                    keys.uid = None;
                }
                if words.iter().any(|word| word.starts_with(b"gname=")) {
                    keys.gid = None;
                }
                words.into_iter().try_for_each(|word| keys.set(word)).map_err(wrong)?;
                let names = name.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
                let mut path = match name.contains(&b'/') {
                    true => Vec::new(),
                    false => directory.clone(),
                };
                for name in names {
                    if name == b".." {
                        return Err(wrong("a path leaves its directory with \"..\"".into()));
                    }
                    path.push(name.to_vec());
                }
                if !name.contains(&b'/') && keys.kind == Some(Kind::Directory) {
                    directory = path.clone();
                }
                entries.push(Entry { line, path: path.join(&b'/'), keys });
            }
        }
    }
    Ok(entries)
}

/// Whether a word looks like a misspelt `/set`, rather than a file in the root directory.
fn is_command(name: &[u8]) -> bool {
    name.len() <= 8 && (name.starts_with(b"/se") || name.starts_with(b"/uns"))
}

/// Splits text into lines with their numbers. Joins lines that end in a backslash with the next
/// line, and removes comments.
fn joined(text: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let mut lines: Vec<(usize, Vec<u8>)> = Vec::new();
    let mut goes_on = false;
    for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if !goes_on && line.trim_ascii_start().starts_with(b"#") {
            continue;
        }
        let (line, more) = match line.strip_suffix(b"\\") {
            Some(line) => (line, true),
            None => (line, false),
        };
        match lines.last_mut().filter(|_| goes_on) {
            Some((_, last)) => {
                last.push(b' ');
                last.extend_from_slice(line);
            }
            None => lines.push((number, line.to_vec())),
        }
        goes_on = more;
    }
    lines
}

impl Keys {
    /// Parses a word such as `mode=0644`.
    fn set(&mut self, word: &[u8]) -> Result<(), String> {
        let (key, value) = match word.iter().position(|&byte| byte == b'=') {
            Some(at) => (&word[..at], Some(&word[at + 1..])),
            None => (word, None),
        };
        let text = std::str::from_utf8(key).unwrap_or_default();
        let value = || value.ok_or_else(|| format!("{text} has no value"));
        match text {
            "type" => self.kind = Some(kind(value()?)?),
            "mode" => self.mode = Some(mode(value()?)?),
            "uid" => self.uid = Some(number(value()?)?),
            "gid" => self.gid = Some(number(value()?)?),
            "uname" => self.uname = Some(unescaped(value()?)?),
            "gname" => self.gname = Some(unescaped(value()?)?),
            "time" => self.time = Some(time(value()?)?),
            "size" => self.size = Some(number(value()?)?),
            "link" => self.link = Some(unescaped(value()?)?),
            "device" => self.device = Some(device(value()?)?),
            "contents" | "content" => self.contents = Some(unescaped(value()?)?),
            "optional" => self.optional = true,
            "nochange" => self.nochange = true,
            known if IGNORED.contains(&known) => {}
            _ => return Err(format!("{} is no keyword of mtree(5)", quote(key))),
        }
        Ok(())
    }

    /// Forgets a default.
    fn unset(&mut self, key: &[u8]) -> Result<(), String> {
        match key {
            b"all" => *self = Self::default(),
            b"type" => self.kind = None,
            b"mode" => self.mode = None,
            b"uid" => self.uid = None,
            b"gid" => self.gid = None,
            b"uname" => self.uname = None,
            b"gname" => self.gname = None,
            b"time" => self.time = None,
            b"size" => self.size = None,
            b"link" => self.link = None,
            b"device" => self.device = None,
            b"contents" | b"content" => self.contents = None,
            b"optional" => self.optional = false,
            b"nochange" => self.nochange = false,
            key if IGNORED.iter().any(|known| known.as_bytes() == key) => {}
            key => return Err(format!("{} is no keyword of mtree(5)", quote(key))),
        }
        Ok(())
    }
}

fn kind(value: &[u8]) -> Result<Kind, String> {
    Ok(match value {
        b"file" => Kind::File,
        b"dir" => Kind::Directory,
        b"link" => Kind::Symlink,
        b"char" => Kind::CharDevice,
        b"block" => Kind::BlockDevice,
        b"fifo" => Kind::Fifo,
        b"socket" => Kind::Socket,
        other => return Err(format!("{} is no type of a file", quote(other))),
    })
}

fn mode(value: &[u8]) -> Result<u16, String> {
    let text = std::str::from_utf8(value).ok();
    let mode = text.and_then(|text| u16::from_str_radix(text, 8).ok()).filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| format!("{} is no mode in octal", quote(value)))
}

fn number<T: std::str::FromStr>(value: &[u8]) -> Result<T, String> {
    let text = std::str::from_utf8(value).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| format!("{} is no number", quote(value)))
}

/// Parses `SECONDS.NANOSECONDS`. What follows the point is a number of nanoseconds, not a decimal
/// fraction.
fn time(value: &[u8]) -> Result<Timestamp, String> {
    let (seconds, nanos) = match value.iter().position(|&byte| byte == b'.') {
        Some(at) => (&value[..at], number(&value[at + 1..])?),
        None => (value, 0),
    };
    match nanos {
        0..1_000_000_000 => Ok(Timestamp { seconds: number(seconds)?, nanos }),
        _ => Err(format!("{} is no time", quote(value))),
    }
}

/// Parses `FORMAT,MAJOR,MINOR`, or a device number as Linux packs it.
fn device(value: &[u8]) -> Result<(u32, u32), String> {
    let fields: Vec<&[u8]> = value.split(|&byte| byte == b',').collect();
    match fields[..] {
        [_, major, minor] => Ok((number(major)?, number(minor)?)),
        [whole] => {
            let hex = whole.strip_prefix(b"0x").and_then(|hex| std::str::from_utf8(hex).ok());
            let device = match hex {
                Some(hex) => {
                    u64::from_str_radix(hex, 16).map_err(|_| format!("{} is no number", quote(value)))?
                }
                None => number(whole)?,
            };
            Ok((rustix::fs::major(device), rustix::fs::minor(device)))
        }
        _ => Err(format!("{} is no device, such as native,5,1", quote(value))),
    }
}

/// Decodes a word as encoded by vis(3), such as `\040` for a space.
fn unescaped(word: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, more @ ..] = rest {
        rest = more;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        let octal = more.get(..3).filter(|digits| digits.iter().all(|digit| (b'0'..b'8').contains(digit)));
        if let Some([a, b, c]) = octal {
            let value = u32::from(a - b'0') << 6 | u32::from(b - b'0') << 3 | u32::from(c - b'0');
            bytes.push(u8::try_from(value).map_err(|_| format!("{} has no such character", quote(word)))?);
            rest = &more[3..];
            continue;
        }
        let Some((letter, more)) = more.split_first() else {
            return Err(format!("{} ends in a backslash", quote(word)));
        };
        rest = more;
        bytes.push(match letter {
            b's' => b' ',
            b't' => b'\t',
            b'n' => b'\n',
            b'r' => b'\r',
            b'a' => 7,
            b'b' => 8,
            b'v' => 11,
            b'f' => 12,
            b'0' => 0,
            b'\\' | b'#' | b'"' | b'*' | b'?' | b'[' => *letter,
            _ => return Err(format!("{} has an unknown escape", quote(word))),
        });
    }
    match bytes.contains(&0) {
        true => Err(format!("{} has a zero byte", quote(word))),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        let entries = parse(text.as_bytes()).unwrap();
        entries.into_iter().map(|entry| String::from_utf8(entry.path).unwrap()).collect()
    }

    #[test]
    fn names_are_below_the_last_directory_and_paths_below_the_root() {
        let text = "#mtree\n/set type=file uid=0\n. type=dir\n  etc type=dir\n    motd mode=0644\n  ..\n  bin type=link\n";
        assert_eq!(paths(text), ["", "etc", "etc/motd", "bin"]);
        assert_eq!(
            paths("./etc type=dir\n./etc/two\\040words\nmotd\n/abs/x\n"),
            ["etc", "etc/two words", "motd", "abs/x"]
        );
    }

    #[test]
    fn keys_have_defaults_and_values() {
        let text = "/set uid=1 gid=2 type=file\na mode=4755 time=5.7 \\\n  size=3 sha256=00 contents=x\\sy\n\
            /unset uid\nb type=char device=native,5,1\nc type=block device=0x801 optional\n";
        let entries = parse(text.as_bytes()).unwrap();
        let (a, b, c) = (&entries[0].keys, &entries[1].keys, &entries[2].keys);
        assert_eq!((entries[0].line, entries[1].line), (2, 5));
        assert_eq!((a.kind, a.mode, a.uid, a.gid), (Some(Kind::File), Some(0o4755), Some(1), Some(2)));
        assert_eq!((a.time, a.size), (Some(Timestamp { seconds: 5, nanos: 7 }), Some(3)));
        assert_eq!(a.contents.as_deref(), Some(&b"x y"[..]));
        assert_eq!((b.uid, b.gid, b.device, b.optional), (None, Some(2), Some((5, 1)), false));
        assert_eq!((c.device, c.optional), (Some((8, 1)), true));
    }

    #[test]
    fn mistakes_name_the_line() {
        for (text, told) in [
            ("a mode=9", "9 is no mode in octal"),
            ("a type=door", "door is no type of a file"),
            ("a colour=red", "colour is no keyword of mtree(5)"),
            ("a uid", "uid has no value"),
            ("./../a type=file", "a path leaves its directory with \"..\""),
            ("/sett uid=0", "is neither /set nor /unset"),
            ("a\\q", "has an unknown escape"),
            ("a time=1.1000000000", "is no time"),
            ("a device=1,2", "is no device, such as native,5,1"),
        ] {
            let (line, problem) = parse(format!("#mtree\n{text}\n").as_bytes()).unwrap_err();
            assert!(line == 2 && problem.contains(told), "{text}: {line}: {problem}");
        }
    }
}
