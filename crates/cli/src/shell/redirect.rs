//! Where the output of a line goes: `| COMMAND` of the host's shell, `> FILE` and `>> FILE` of the
//! host.

use crate::edit::words;
use crate::failure::Failure;
use crate::output::Output;
use crate::session::Session;
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Where output goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Goal<'a> {
    /// To standard output.
    Here,
    /// Into a command of the host's shell.
    Pipe(&'a [u8]),
    /// Into a file of the host, replacing its contents or appended to them.
    File { name: PathBuf, appends: bool },
}

/// A line's own command, and where its output goes.
///
/// # Errors
/// No command or file is named, or more than one file.
pub(super) fn parted(line: &[u8]) -> Result<(&[u8], Goal<'_>), &'static str> {
    let Some(at) = operator(line) else { return Ok((line, Goal::Here)) };
    let (command, rest) = line.split_at(at);
    match rest {
        [b'|', shell @ ..] => match shell.trim_ascii() {
            [] => Err("a command of the host comes behind |"),
            shell => Ok((command, Goal::Pipe(shell))),
        },
        rest => {
            let appends = rest.starts_with(b">>");
            let named: Vec<OsString> = words(&rest[1 + usize::from(appends)..])?;
            let [name] = &named[..] else { return Err("one file of the host comes behind >") };
            Ok((command, Goal::File { name: name.into(), appends }))
        }
    }
}

/// The place of the first `|` or `>` that is not quoted.
fn operator(line: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut in_word = false;
    while let Some(&byte) = line.get(at) {
        let quote = match byte {
            b'|' | b'>' => return Some(at),
            b'#' if !in_word => return None,
            b'$' if line.get(at + 1) == Some(&b'\'') => Some((at + 2, b'\'', true)),
            b'\'' => Some((at + 1, byte, false)),
            b'"' => Some((at + 1, byte, true)),
            _ => None,
        };
        in_word = !matches!(byte, b' ' | b'\t' | b'\r');
        at = match quote {
            Some((from, end, escapes)) => end_of_quote(line, from, end, escapes)?,
            None => at + 1 + usize::from(byte == b'\\'),
        };
    }
    None
}

/// The place behind a quotation whose contents begin at `at`; `None` if it does not end.
fn end_of_quote(line: &[u8], mut at: usize, end: u8, escapes: bool) -> Option<usize> {
    loop {
        match *line.get(at)? {
            byte if byte == end => return Some(at + 1),
            b'\\' if escapes => at += 2,
            _ => at += 1,
        }
    }
}

/// The other end of a line's output.
pub(super) struct Elsewhere {
    child: Option<Child>,
}

impl Goal<'_> {
    /// Opens the file or starts the command; `None` for standard output. Refuses to overwrite
    /// `image`.
    ///
    /// # Errors
    /// The file cannot be opened, or the command cannot be started.
    pub(super) fn open(&self, image: &Path) -> Result<Option<(Output, Elsewhere)>, Failure> {
        match self {
            Goal::Here => Ok(None),
            Goal::Pipe(shell) => {
                let mut command = Command::new("sh");
                command.arg("-c").arg(OsStr::from_bytes(shell)).stdin(Stdio::piped());
                let mut child = command.spawn().map_err(|error| Failure::host(Path::new("sh"), error))?;
                let input = OwnedFd::from(child.stdin.take().expect("it is a pipe"));
                Ok(Some((Output::to(input.into()), Elsewhere { child: Some(child) })))
            }
            Goal::File { name, appends } => {
                let _claim = match name.metadata() {
                    Ok(there) if there.is_file() || there.file_type().is_block_device() => {
                        Some(Session::claim_output(name, image)?)
                    }
                    _ => None,
                };
                let mut options = OpenOptions::new();
                options.create(true).append(*appends).write(true).truncate(!appends);
                let file = options.open(name).map_err(|error| Failure::host(name, error))?;
                Ok(Some((Output::to(file), Elsewhere { child: None })))
            }
        }
    }
}

impl Elsewhere {
    /// Waits for the command, whose input has been closed. Its exit status, and whether it has read
    /// all of its input, do not matter.
    pub(super) fn end<T: Default>(self, done: Result<T, Failure>) -> Result<T, Failure> {
        let Some(mut child) = self.child else { return done };
        child.wait().map_err(|error| Failure::host(Path::new("sh"), error))?;
        match done {
            Err(Failure::Closed) => Ok(T::default()),
            done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goal(line: &str) -> Result<(String, Goal<'_>), &'static str> {
        parted(line.as_bytes()).map(|(command, goal)| (String::from_utf8(command.to_vec()).unwrap(), goal))
    }

    #[test]
    fn output_goes_where_an_operator_says_that_is_not_quoted() {
        let file = |name: &str, appends| Goal::File { name: name.into(), appends };
        assert_eq!(goal("ls a | grep 'x|y' > z"), Ok(("ls a ".into(), Goal::Pipe(b"grep 'x|y' > z"))));
        assert_eq!(goal("cat a>'b c'"), Ok(("cat a".into(), file("b c", false))));
        assert_eq!(goal("cat a >> b"), Ok(("cat a ".into(), file("b", true))));
        for quoted in [r"cat 'a|b' c\>d", r#"cat "a\">b""#, r"cat $'a\'|b'", "ls # a | b", "cat 'a | b"] {
            assert_eq!(goal(quoted), Ok((quoted.into(), Goal::Here)), "{quoted}");
        }
        assert_eq!(goal("ls a#b | c"), Ok(("ls a#b ".into(), Goal::Pipe(b"c"))));
        for wrong in ["ls |", "ls >", "ls > a b", "ls > a > b >"] {
            assert!(goal(wrong).is_err(), "{wrong}");
        }
    }
}
