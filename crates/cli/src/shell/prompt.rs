//! The prompt: a line editor with history across sessions and completion of commands and paths.

use super::absolute;
use super::arguments::ShellLine;
use super::history::{self, History};
use crate::shell_word::{self, is_typed};
use clap::CommandFactory;
use extant_format::FileKind;
use extant_fs::{Follow, Volume, quote};
use extant_rt::Rt;
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::{History as _, MemHistory};
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, Helper};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// Maximum number of names offered by one completion.
const NAMES_MAX: usize = 10_000;

/// What the user typed at a prompt.
pub(super) enum Typed {
    Line(String),
    /// The line was abandoned (Ctrl-C).
    Abandoned,
    End,
}

pub(super) struct Prompt {
    editor: Editor<Names, MemHistory>,
    history: History,
}

impl Prompt {
    pub(super) fn new(rt: &Rt, volume: &Volume) -> io::Result<Self> {
        // Lines that begin with a space, and repeats of the last line, are not kept.
        let config = Config::builder().completion_type(CompletionType::List).history_ignore_space(true);
        let config = config.max_history_size(history::LINES_MAX).map_err(io_error)?.build();
        let mut lines = MemHistory::with_config(&config);
        let place = history::place(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"));
        let (history, earlier) = History::open(place.as_deref());
        for line in earlier {
            lines.add_owned(line).map_err(io_error)?;
        }
        let mut editor = Editor::with_history(config, lines).map_err(io_error)?;
        editor.set_helper(Some(Names { rt: rt.clone(), volume: volume.clone(), directory: Vec::new() }));
        Ok(Self { editor, history })
    }

    /// Reads a line; paths are completed relative to this directory of the volume.
    pub(super) fn read(&mut self, text: &str, directory: &[u8]) -> io::Result<Typed> {
        if let Some(names) = self.editor.helper_mut() {
            names.directory = directory.to_vec();
        }
        match self.editor.readline(text) {
            Ok(line) => {
                if self.editor.add_history_entry(line.as_str()).map_err(io_error)? {
                    self.history.keep(&line);
                }
                Ok(Typed::Line(line))
            }
            Err(ReadlineError::Interrupted) => Ok(Typed::Abandoned),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(error) => Err(io_error(error)),
        }
    }
}

fn io_error(error: ReadlineError) -> io::Error {
    match error {
        ReadlineError::Io(error) => error,
        other => io::Error::other(other),
    }
}

/// Completes names in a line.
struct Names {
    rt: Rt,
    volume: Volume,
    directory: Vec<u8>,
}

impl Completer for Names {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let Some(Word { begin, text, first }) = Word::before(&line[..at]) else {
            return Ok((at, Vec::new()));
        };
        let Some(command) = first else {
            let names = ShellLine::command();
            let names = names.get_subcommands().map(clap::Command::get_name).chain(["help"]);
            let pair = |name: &str| Pair { display: name.into(), replacement: format!("{name} ") };
            return Ok((begin, names.filter(|name| name.starts_with(&text)).map(pair).collect()));
        };
        let (dir, prefix) = text.split_at(text.rfind('/').map_or(0, |slash| slash + 1));
        let mut names = self.of_volume(dir);
        // The other end of a copy is on the host.
        if matches!(command.as_str(), "put" | "get" | "cp") {
            names.extend(of_host(dir));
        }
        names.retain(|(name, _)| name.starts_with(prefix.as_bytes()));
        names.sort();
        names.dedup();
        names.truncate(NAMES_MAX);
        let pair = |(name, is_dir): (Vec<u8>, bool)| {
            let end = if is_dir { "/" } else { " " };
            Pair {
                display: quote(&name) + end.trim_end(),
                replacement: escaped(&[dir.as_bytes(), &name].concat()) + end,
            }
        };
        Ok((begin, names.into_iter().map(pair).collect()))
    }
}

impl Names {
    /// Names in a directory of the volume, and whether they are directories; empty if the directory
    /// cannot be read.
    fn of_volume(&self, dir: &str) -> Vec<(Vec<u8>, bool)> {
        let path = absolute(&self.directory, dir.as_bytes());
        let listed = self.rt.block_on(async {
            let dir = self.volume.resolve(&path, Follow::Yes).await?;
            self.volume.list(&dir).await
        });
        let items = match listed {
            Ok(Ok(items)) => items,
            _ => return Vec::new(),
        };
        items.into_iter().map(|item| (item.name, item.kind == Some(FileKind::Directory))).collect()
    }
}

/// Like [`Names::of_volume`], for a host directory.
fn of_host(dir: &str) -> Vec<(Vec<u8>, bool)> {
    let Ok(entries) = std::fs::read_dir(if dir.is_empty() { Path::new(".") } else { Path::new(dir) }) else {
        return Vec::new();
    };
    let name = |entry: io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        Some((entry.file_name().into_vec(), entry.path().is_dir()))
    };
    entries.filter_map(name).collect()
}

/// The word being typed.
#[derive(Debug, PartialEq, Eq)]
struct Word {
    /// Offset of its start in the line.
    begin: usize,
    /// The word with backslashes removed.
    text: String,
    /// The first word of the line, unless it is this one.
    first: Option<String>,
}

impl Word {
    /// The last word of a line; `None` if it is quoted, because that is not completed.
    fn before(line: &str) -> Option<Self> {
        let (mut begin, mut text, mut first) = (0, String::new(), None);
        let mut chars = line.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '\'' | '"' => return None,
                '\\' => text.extend(chars.next().map(|(_, c)| c)),
                ' ' | '\t' => {
                    if first.is_none() && !text.is_empty() {
                        first = Some(std::mem::take(&mut text));
                    }
                    text.clear();
                    begin = at + 1;
                }
                c => text.push(c),
            }
        }
        Some(Self { begin, text, first })
    }
}

/// A word as it would be typed: special characters are escaped with backslashes. A word that a
/// terminal would not show as is, or might obey, is put in `$'…'`.
fn escaped(word: &[u8]) -> String {
    let plain = std::str::from_utf8(word).ok().filter(|text| text.chars().all(is_typed));
    let Some(plain) = plain else { return shell_word::escaped(word) };
    let mut text = String::with_capacity(plain.len());
    for c in plain.chars() {
        if matches!(c, ' ' | '\\' | '\'' | '"' | '#' | '$') {
            text.push('\\');
        }
        text.push(c);
    }
    text
}

impl Helper for Names {}
impl Highlighter for Names {}
impl Validator for Names {}
impl Hinter for Names {
    type Hint = String;
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_block::MemDevice;
    use extant_image::{SizePolicy, Timestamp, VolumeOptions, mkfs};
    use rustyline::history::DefaultHistory;
    use std::sync::Arc;

    #[test]
    fn the_word_that_is_typed_is_found() {
        let word = |line| Word::before(line).map(|word| (word.begin, word.text, word.first));
        let first = Some("ls".to_owned());
        assert_eq!(word("l"), Some((0, "l".into(), None)));
        assert_eq!(word("ls "), Some((3, String::new(), first.clone())));
        assert_eq!(word("ls -l a\\ b"), Some((6, "a b".into(), first)));
        assert_eq!(word("ls 'a"), None);
        assert_eq!(escaped(b"a b#$"), "a\\ b\\#\\$");
    }

    #[test]
    fn a_name_that_a_terminal_might_obey_is_completed_as_its_escapes() {
        for name in [&b"\x1b]0;x\x07"[..], b"a\nb'\\", b"\xff\xfe z", "\u{9b}31m\u{202e}é".as_bytes()] {
            let text = escaped(name);
            assert!(text.starts_with("$'") && text.chars().all(is_typed), "{text:?}");
            let words = crate::edit::words(text.as_bytes()).unwrap();
            assert_eq!(words, [std::ffi::OsString::from_vec(name.to_vec())], "{text}");
        }
        assert_eq!(escaped("é\x1b".as_bytes()), "$'é\\x1b'");
    }

    #[test]
    fn commands_and_paths_of_the_volume_are_completed() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("i.img");
        let rt = Rt::real(Default::default());
        let options = VolumeOptions { size: SizePolicy::Fixed(8 << 20), ..Default::default() };
        mkfs(&image, &options, Timestamp::default(), &rt, Arc::new(|_, _| {})).unwrap();
        let write = extant::Volume::open(&image, &extant::OpenOptions::new().write(true)).unwrap();
        write.root().create_dir_all("etc/init d").unwrap();
        write.root().write("etc/issue", "").unwrap();
        write.root().create_dir("odd").unwrap();
        write.root().write(b"odd/\x1b]0;x\x07\n\xff", "").unwrap();
        write.close().unwrap();
        let device = Arc::new(MemDevice::from_bytes(std::fs::read(&image).unwrap()));
        let volume = rt.block_on(Volume::open(device, Default::default())).unwrap().unwrap();
        let names = Names { rt, volume, directory: b"/etc".to_vec() };
        let history = DefaultHistory::new();
        let complete = |line: &str| {
            let (begin, found) = names.complete(line, line.len(), &Context::new(&history)).unwrap();
            (begin, found.into_iter().map(|pair| pair.replacement).collect::<Vec<_>>())
        };
        assert_eq!(complete("tru"), (0, vec!["truncate ".to_owned()]));
        assert_eq!(complete("ls i"), (3, vec!["init\\ d/".to_owned(), "issue ".into()]));
        assert_eq!(complete("cat /etc/is"), (4, vec!["/etc/issue ".to_owned()]));
        assert_eq!(complete("cat /none/"), (4, vec![]));
        let (_, found) = names.complete("ls /odd/", 8, &Context::new(&history)).unwrap();
        assert_eq!(found[0].replacement, r"$'/odd/\x1b]0;x\x07\x0a\xff' ");
        assert_eq!(found[0].display, r"\u{1b}]0;x\u{7}\n\xff");
    }
}
