//! Device tables: lists of directories, device nodes and pipes, and of owners and modes of files.
//!
//! The format is that of makedevs and genext2fs (`man genext2fs`), which Buildroot and Yocto write.

use crate::BuildError;
use crate::tree::{Kind, Meta, NodeId, Payload, Tree, XattrSetId};
use extant_format::Timestamp;
use extant_fs::quote;

/// A device table.
///
/// Each line is `NAME TYPE MODE UID GID MAJOR MINOR START INC COUNT`, with `-` for what a type does
/// not need. The types are `d` for a directory, which is created if missing; `c`, `b` and `p` for
/// device nodes and pipes; `f` for a file of the sources, and `F` for a file that may be missing;
/// and `r` for a directory with everything in it. With a COUNT, a line creates several nodes. Their
/// names end with a number that counts from START, and their MINOR grows by INC. A MODE of -1
/// leaves the mode as it is. UID and GID are numbers, or names that the sources, the volume that
/// they are added to or this host knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceTable {
    /// The table's name in messages.
    file: String,
    lines: Vec<Line<Owner>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Owner {
    Number(u32),
    Name(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Line<Id> {
    number: usize,
    /// The path, without slashes at its ends.
    path: Vec<u8>,
    what: What,
    mode: Option<u16>,
    uid: Id,
    gid: Id,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Directory,
    Tree,
    File { may_lack: bool },
    Fifo,
    Device { kind: Kind, major: u32, minor: u32, several: Option<Several> },
}

/// What a table needs to know about the files and users around it.
pub(crate) trait Surroundings {
    /// The number of a user. The error says who does not know one.
    fn user(&mut self, name: &[u8]) -> Result<u32, String>;
    /// The number of a group.
    fn group(&mut self, name: &[u8]) -> Result<u32, String>;
    /// The node at a path whose links are followed, the last one too.
    fn follow(&self, tree: &Tree, path: &[u8]) -> Result<Option<NodeId>, BuildError>;
}

/// The numbered nodes of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Several {
    start: u32,
    step: u32,
    count: u32,
}

/// Maximum number of nodes of one line; more are taken for a mistake.
const MOST_NODES: u32 = 1 << 20;

impl DeviceTable {
    /// Parses a table; `file` names it in messages.
    ///
    /// # Errors
    /// Names the first line that is invalid.
    pub fn parse(file: &str, text: &[u8]) -> Result<Self, BuildError> {
        let mut lines = Vec::new();
        for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            lines.push(Line::parse(number, line).map_err(|problem| failed(file, number, problem))?);
        }
        Ok(Self { file: file.to_owned(), lines })
    }

    /// Whether it names users or groups.
    pub(crate) fn has_names(&self) -> bool {
        let is_name = |owner: &Owner| matches!(owner, Owner::Name(_));
        self.lines.iter().any(|line| is_name(&line.uid) || is_name(&line.gid))
    }

    /// Creates and changes the files that the table lists. New directories and nodes get the given
    /// time.
    pub(crate) fn apply(
        &self,
        tree: &mut Tree,
        time: Timestamp,
        around: &mut impl Surroundings,
    ) -> Result<(), BuildError> {
        for line in &self.lines {
            let line = line.with_numbers(around);
            let line = line.map_err(|(number, problem)| failed(&self.file, number, problem))?;
            line.apply(tree, time, around, &self.file)?;
        }
        Ok(())
    }
}

fn failed(file: &str, line: usize, problem: String) -> BuildError {
    BuildError::Line { file: file.to_owned(), line, problem }
}

impl Line<Owner> {
    fn parse(number: usize, line: &[u8]) -> Result<Self, String> {
        let fields: Vec<&[u8]> =
            line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).collect();
        let [name, kind, mode, uid, gid, rest @ ..] = &fields[..] else {
            return Err(
                "a line is NAME TYPE MODE UID GID MAJOR MINOR START INC COUNT, with - for none".into()
            );
        };
        let of = |field: usize| rest.get(field).copied().filter(|value| *value != b"-");
        let whole = |what: &str, value: Option<&[u8]>| -> Result<u32, String> {
            let Some(digits) = value else { return Ok(0) };
            text(digits)?.parse().map_err(|_| format!("{what} is no number: {}", quote(digits)))
        };
        let device = |kind| {
            let (start, step, count) = (whole("START", of(2))?, whole("INC", of(3))?, whole("COUNT", of(4))?);
            let several = (count > 0).then_some(Several { start, step, count });
            if count > MOST_NODES || step.checked_mul(count).is_none() {
                return Err(format!("{count} nodes are too many"));
            }
            let (major, minor) = (whole("MAJOR", of(0))?, whole("MINOR", of(1))?);
            Ok(What::Device { kind, major, minor, several })
        };
        let what = match *kind {
            b"d" => What::Directory,
            b"r" => What::Tree,
            b"f" => What::File { may_lack: false },
            b"F" => What::File { may_lack: true },
            b"p" => What::Fifo,
            b"c" => device(Kind::CharDevice)?,
            b"b" => device(Kind::BlockDevice)?,
            other => return Err(format!("{} is no type: there are d, r, f, F, p, c and b", quote(other))),
        };
        let mode = match *mode {
            b"-1" => None,
            mode => {
                let parsed = u16::from_str_radix(text(mode)?, 8).ok().filter(|mode| *mode <= 0o7777);
                Some(parsed.ok_or_else(|| format!("{} is no mode in octal", quote(mode)))?)
            }
        };
        let path: Vec<&[u8]> =
            name.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".").collect();
        if path.iter().any(|name| *name == b"..") || path.is_empty() && what != What::Directory {
            return Err(format!("{} is no path from the root of the volume", quote(name)));
        }
        let owner = |what: &str, field: &[u8]| match field.first() {
            Some(first) if first.is_ascii_alphabetic() || *first == b'_' => Ok(Owner::Name(field.to_vec())),
            _ => match str::from_utf8(field).ok().and_then(|digits| digits.parse().ok()) {
                Some(number) => Ok(Owner::Number(number)),
                None => Err(format!("{what} is neither a number nor a name: {}", quote(field))),
            },
        };
        let (uid, gid) = (owner("UID", uid)?, owner("GID", gid)?);
        Ok(Self { number, path: path.join(&b'/'), what, mode, uid, gid })
    }

    /// The line with numbers for names. An error comes with the line's own number.
    fn with_numbers(&self, around: &mut impl Surroundings) -> Result<Line<u32>, (usize, String)> {
        let uid = match &self.uid {
            Owner::Number(number) => Ok(*number),
            Owner::Name(name) => around.user(name),
        };
        let gid = match &self.gid {
            Owner::Number(number) => Ok(*number),
            Owner::Name(name) => around.group(name),
        };
        let &Self { number, what, mode, .. } = self;
        let of = |problem| (number, problem);
        Ok(Line { number, path: self.path.clone(), what, mode, uid: uid.map_err(of)?, gid: gid.map_err(of)? })
    }
}

impl Line<u32> {
    fn apply(
        &self,
        tree: &mut Tree,
        time: Timestamp,
        around: &impl Surroundings,
        file: &str,
    ) -> Result<(), BuildError> {
        let wrong = |problem: String| failed(file, self.number, problem);
        let is_made = !matches!(self.what, What::File { .. } | What::Tree);
        let (above, name) = match self.path.iter().rposition(|&byte| byte == b'/') {
            Some(at) => (&self.path[..at], &self.path[at + 1..]),
            None => (&[][..], &self.path[..]),
        };
        if name.is_empty() {
            self.set(tree, NodeId::ROOT, time);
            return Ok(());
        }
        let mut dir = NodeId::ROOT;
        for step in above.split(|&byte| byte == b'/').filter(|step| !step.is_empty()) {
            let there = tree.lookup(dir, step).map(|entry| tree.entry_node(entry));
            // A link on the way is followed, as makedevs does.
            let led = match there.map(|node| tree.node(node).kind) {
                Some(Kind::Symlink) => around.follow(tree, &[&tree.path(dir)[..], b"/", step].concat())?,
                _ => there,
            };
            dir = match led.or(there) {
                Some(node) if tree.node(node).kind == Kind::Directory => node,
                Some(_) => return Err(wrong(format!("{} is no directory", quote(step)))),
                None if is_made => tree.imply_directory(dir, step)?,
                None if self.what == (What::File { may_lack: true }) => return Ok(()),
                None => return Err(wrong(format!("there is no /{}", quote(&self.path)))),
            };
        }
        let there = tree.lookup(dir, name).map(|entry| tree.entry_node(entry));
        let kind = there.map(|node| tree.node(node).kind);
        match self.what {
            What::Directory => match (there, kind) {
                (Some(node), Some(Kind::Directory)) => self.set(tree, node, time),
                (Some(_), _) => return Err(wrong(format!("/{} is no directory", quote(&self.path)))),
                (None, _) => drop(tree.put_directory(dir, name, self.meta(time, 0o755))?),
            },
            What::File { may_lack } => match (there, kind) {
                (Some(node), Some(Kind::File)) => self.set(tree, node, time),
                (None, _) if may_lack => {}
                (Some(_), _) => return Err(wrong(format!("/{} is no regular file", quote(&self.path)))),
                (None, _) => return Err(wrong(format!("there is no /{}", quote(&self.path)))),
            },
            What::Tree => {
                let top = there.ok_or_else(|| wrong(format!("there is no /{}", quote(&self.path))))?;
                let mut todo = vec![top];
                while let Some(node) = todo.pop() {
                    self.set(tree, node, time);
                    let below: Vec<NodeId> =
                        tree.children(node).map(|entry| tree.entry_node(entry)).collect();
                    todo.extend(below);
                }
            }
            What::Fifo => self.put(tree, dir, name, Kind::Fifo, Payload::None, time, file)?,
            What::Device { kind, major, minor, several } => {
                let all = several.unwrap_or(Several { start: 0, step: 0, count: 1 });
                for n in 0..all.count {
                    let mut name = name.to_vec();
                    if several.is_some() {
                        name.extend(all.start.saturating_add(n).to_string().bytes());
                    }
                    let minor = minor.saturating_add(n * all.step);
                    self.put(tree, dir, &name, kind, Payload::Device { major, minor }, time, file)?;
                }
            }
        }
        Ok(())
    }

    /// Adds a device or pipe, or changes an existing one.
    #[allow(clippy::too_many_arguments)] // one line's work; all of it is data
    fn put(
        &self,
        tree: &mut Tree,
        dir: NodeId,
        name: &[u8],
        kind: Kind,
        payload: Payload,
        time: Timestamp,
        file: &str,
    ) -> Result<(), BuildError> {
        let there = tree.lookup(dir, name).map(|entry| tree.node(tree.entry_node(entry)).kind);
        if there.is_some_and(|there| there != kind) {
            let problem = format!("something else is at /{}", quote(&self.path));
            return Err(failed(file, self.number, problem));
        }
        tree.put(dir, name, kind, self.meta(time, 0o644), payload, 0, None).map(drop)
    }

    fn meta(&self, mtime: Timestamp, mode: u16) -> Meta {
        let mode = self.mode.unwrap_or(mode);
        Meta { mode, uid: self.uid, gid: self.gid, mtime, xattrs: XattrSetId::EMPTY }
    }

    /// Sets owner and mode.
    fn set(&self, tree: &mut Tree, node: NodeId, time: Timestamp) {
        let node = tree.node_mut(node);
        (node.uid, node.gid) = (self.uid, self.gid);
        if let Some(mode) = self.mode.filter(|_| node.kind != Kind::Symlink) {
            node.mode = mode;
        }
        if std::mem::take(&mut node.implied) {
            node.mtime = time;
        }
    }
}

fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|_| format!("{} is no number", quote(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Timestamp = Timestamp { seconds: 5, nanos: 0 };

    /// Knows one user and group.
    struct Games;

    impl Surroundings for Games {
        fn user(&mut self, name: &[u8]) -> Result<u32, String> {
            if name == b"games" { Ok(5) } else { Err(format!("nobody knows {}", quote(name))) }
        }

        fn group(&mut self, name: &[u8]) -> Result<u32, String> {
            self.user(name).map(|_| 60)
        }

        fn follow(&self, _: &Tree, _: &[u8]) -> Result<Option<NodeId>, BuildError> {
            Ok(None)
        }
    }

    fn applied(text: &str, tree: &mut Tree) -> Result<(), String> {
        let table = DeviceTable::parse("table", text.as_bytes());
        table.and_then(|table| table.apply(tree, TIME, &mut Games)).map_err(|error| error.to_string())
    }

    fn at(tree: &Tree, path: &str) -> Option<NodeId> {
        path.split('/')
            .try_fold(NodeId::ROOT, |dir, name| Some(tree.entry_node(tree.lookup(dir, name.as_bytes())?)))
    }

    fn meta(mode: u16) -> Meta {
        Meta { mode, uid: 9, gid: 9, mtime: Timestamp::default(), xattrs: XattrSetId::EMPTY }
    }

    #[test]
    fn a_table_makes_and_changes_files() {
        let mut tree = Tree::new();
        let bin = tree.put_directory(NodeId::ROOT, b"bin", meta(0o700)).unwrap();
        tree.put(bin, b"su", Kind::File, meta(0o644), Payload::None, 0, None).unwrap();
        let text = "# of Buildroot\n/dev d 755 0 0 - - - - -\n/dev/console c 600 0 5 5 1 - - -\n\
            /dev/hda b 640 0 6 3 1 1 2 3\n/bin r -1 1 2 - - - - -\n/bin/su f 4755 0 0 - - - - -\n\
            /var/run/pipe p 644 games games - - - - -\n/none F 644 0 0 - - - - -\n/ d 711 3 4 - - - - -\n";
        applied(text, &mut tree).unwrap();
        let seen = |path: &str| {
            let node = tree.node(at(&tree, path).unwrap());
            (node.kind, node.mode, node.uid, node.gid, node.payload)
        };
        let device = |major, minor| Payload::Device { major, minor };
        assert_eq!(seen("dev/console"), (Kind::CharDevice, 0o600, 0, 5, device(5, 1)));
        assert_eq!(seen("dev/hda1"), (Kind::BlockDevice, 0o640, 0, 6, device(3, 1)));
        assert_eq!(seen("dev/hda3"), (Kind::BlockDevice, 0o640, 0, 6, device(3, 5)));
        assert_eq!(at(&tree, "dev/hda4"), None);
        assert_eq!(seen("bin/su"), (Kind::File, 0o4755, 0, 0, Payload::None));
        let bin = tree.node(bin);
        assert_eq!((bin.mode, bin.uid, bin.gid), (0o700, 1, 2));
        assert_eq!(seen("var/run/pipe"), (Kind::Fifo, 0o644, 5, 60, Payload::None));
        let root = tree.node(NodeId::ROOT);
        assert_eq!((root.mode, root.uid, root.mtime), (0o711, 3, TIME));
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (line, told) in [
            ("/a c 600 0", "a line is NAME TYPE"),
            ("/a q 600 0 0", "q is no type"),
            ("/a d 999 0 0", "999 is no mode in octal"),
            ("/a d 755 -5 0", "UID is neither a number nor a name: -5"),
            ("/a d 755 0 nobody", "nobody knows nobody"),
            ("/../a d 755 0 0", "is no path from the root"),
            ("/a c 600 0 0 1 1 0 1 4294967295", "are too many"),
            ("/a f 600 0 0", "there is no /a"),
            ("/su/x d 755 0 0", "su is no directory"),
            ("/su c 600 0 0 1 1", "something else is at /su"),
        ] {
            let mut tree = Tree::new();
            tree.put(NodeId::ROOT, b"su", Kind::File, meta(0o644), Payload::None, 0, None).unwrap();
            let error = applied(&format!("\n{line}\n"), &mut tree).unwrap_err();
            assert!(error.starts_with("table, line 2: ") && error.contains(told), "{line}: {error}");
        }
    }
}
