//! Lines of earlier sessions, in a file of the user. If the file is missing or not writable, only
//! the history is lost.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Maximum number of lines that a session loads: the newest ones.
pub(super) const LINES_MAX: usize = 1000;
/// Longer lines are not saved.
const LINE_BYTES_MAX: usize = 4096;
/// Bytes read from the end of the file.
const FILE_BYTES_MAX: u64 = (LINES_MAX * (LINE_BYTES_MAX + 1)) as u64;

/// The file that lines are appended to, if there is one.
#[derive(Debug, Default)]
pub(super) struct History(Option<File>);

/// Path of the file: `$XDG_STATE_HOME/extant/history`, or `~/.local/state/extant/history`. Relative
/// paths in the environment are ignored, as the XDG Base Directory Specification requires.
pub(super) fn place(state: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let state = state.and_then(absolute).or_else(|| Some(home.and_then(absolute)?.join(".local/state")))?;
    Some(state.join("extant/history"))
}

impl History {
    /// Opens or creates the file; also returns the lines of earlier sessions, oldest first.
    pub(super) fn open(path: Option<&Path>) -> (Self, Vec<String>) {
        path.and_then(|path| open(path).ok())
            .map_or_else(Default::default, |(file, lines)| (Self(Some(file)), lines))
    }

    /// Appends a line. Concurrent sessions interleave whole lines.
    pub(super) fn keep(&mut self, line: &str) {
        let Some(file) = &mut self.0 else { return };
        if line.len() <= LINE_BYTES_MAX
            && !line.contains('\n')
            && file.write_all(format!("{line}\n").as_bytes()).is_err()
        {
            self.0 = None;
        }
    }
}

fn open(path: &Path) -> io::Result<(File, Vec<String>)> {
    let folder = path.parent().ok_or(io::ErrorKind::NotFound)?;
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // Do not block if the name is a pipe.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut file =
        File::options().read(true).append(true).create(true).mode(0o600).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if meta.permissions().mode() & 0o077 != 0 {
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
    }
    let begin = meta.len().saturating_sub(FILE_BYTES_MAX);
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> =
        text.lines().filter(|line| !line.is_empty() && line.len() <= LINE_BYTES_MAX).collect();
    let newest = &all[all.len().saturating_sub(LINES_MAX)..];
    let lines: Vec<String> = newest.iter().map(|&line| line.to_owned()).collect();
    if begin > 0 || newest.len() < all.len() {
        file = shorten(path, &lines).unwrap_or(file);
    }
    Ok((file, lines))
}

/// Replaces a longer file with one of only these lines; lines added meanwhile by other sessions are
/// lost.
fn shorten(path: &Path, lines: &[String]) -> io::Result<File> {
    let new = path.with_extension(format!("{}", std::process::id()));
    let mut file = File::options().append(true).create_new(true).mode(0o600).open(&new)?;
    let text: String = lines.iter().flat_map(|line| [line, "\n"]).collect();
    let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&new, path));
    if let Err(error) = written {
        let _ = fs::remove_file(&new);
        return Err(error);
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_that_of_the_user_s_state() {
        let place =
            |state: Option<&str>, home: Option<&str>| place(state.map(Into::into), home.map(Into::into));
        assert_eq!(place(Some("/state"), Some("/home/me")), Some("/state/extant/history".into()));
        for state in [None, Some(""), Some("not/absolute")] {
            assert_eq!(place(state, Some("/home/me")), Some("/home/me/.local/state/extant/history".into()));
        }
        assert_eq!(place(None, None), None);
        assert_eq!(place(None, Some("")), None);
    }

    #[test]
    fn lines_come_back_in_their_order_and_only_to_their_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/extant/history");
        for n in 0..3 {
            if n == 2 {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            }
            let (mut history, lines) = History::open(Some(&path));
            assert_eq!(lines, (0..n).map(|n| format!("cd /{n}")).collect::<Vec<_>>());
            history.keep(&format!("cd /{n}"));
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(fs::metadata(dir.path().join("state")).unwrap().permissions().mode() & 0o7777, 0o700);
    }

    #[test]
    fn a_session_finds_the_newest_lines_and_the_file_stays_short() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let (mut history, _) = History::open(Some(&path));
        history.keep(&"x".repeat(LINE_BYTES_MAX + 1));
        (0..LINES_MAX + 500).for_each(|n| history.keep(&format!("line {n}")));
        let (mut history, lines) = History::open(Some(&path));
        assert_eq!(lines.len(), LINES_MAX);
        assert_eq!((lines[0].as_str(), lines[LINES_MAX - 1].as_str()), ("line 500", "line 1499"));
        history.keep("last");
        let kept = fs::read_to_string(&path).unwrap();
        assert_eq!((kept.lines().count(), kept.lines().last()), (LINES_MAX + 1, Some("last")));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
        // A huge file is read only in part, and a file that is not text only as far as it is valid.
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(3 * FILE_BYTES_MAX).unwrap();
        assert!(History::open(Some(&path)).1.len() <= LINES_MAX);
    }

    #[test]
    fn a_place_that_cannot_be_used_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        for path in [Some(dir.path().join("file/extant/history")), Some(fifo), Some(dir.path().into()), None]
        {
            let (mut history, lines) = History::open(path.as_deref());
            history.keep("pwd");
            assert!(lines.is_empty(), "{path:?}");
        }
    }
}
