//! Dependencies of core operations: the files and directories created before them.

use super::Persist;
use super::params::{Core, Range};
use crate::{Durability, Op, RenameMode, XattrMode};
use std::collections::{BTreeMap, BTreeSet};

const XATTR: &str = "user.xattr1";

/// Builds a list of operations. Before each core operation, it adds the operations that create or
/// remove the names that the core operation needs.
#[derive(Debug)]
pub(crate) struct Builder {
    ops: Vec<Op>,
    /// Files, with the length that ACE assumes.
    files: BTreeMap<String, u64>,
    dirs: BTreeSet<String>,
    with_xattr: BTreeSet<String>,
    tag: u32,
}

impl Builder {
    /// Starts with an empty volume.
    pub(crate) fn new() -> Self {
        Self {
            ops: Vec::new(),
            files: BTreeMap::new(),
            dirs: BTreeSet::new(),
            with_xattr: BTreeSet::new(),
            tag: 0,
        }
    }

    pub(crate) fn finish(self) -> Vec<Op> {
        self.ops
    }

    fn parent_exists(&mut self, path: &str) {
        if let Some((dir, _)) = path.rsplit_once('/')
            && !self.dirs.contains(dir)
        {
            self.mkdir(dir);
        }
    }

    fn mkdir(&mut self, path: &str) {
        self.ops.push(Op::Mkdir { path: path.into(), mode: 0o777 });
        self.dirs.insert(path.into());
    }

    fn create(&mut self, path: &str) {
        self.ops.push(Op::Create { path: path.into(), mode: 0o777, exclusive: false });
        self.files.insert(path.into(), 0);
    }

    fn file_exists(&mut self, path: &str) {
        self.parent_exists(path);
        if !self.files.contains_key(path) {
            self.create(path);
        }
    }

    fn has_data(&mut self, path: &str) {
        self.file_exists(path);
        if self.files[path] == 0 {
            self.write(path, Range::Append, false, false);
        }
    }

    fn unlink(&mut self, path: &str) {
        self.ops.push(Op::Unlink { path: path.into() });
        self.files.remove(path);
        self.with_xattr.remove(path);
    }

    fn span(&self, path: &str, range: Range, aligned: bool) -> (u64, u64) {
        let (length, piece) = (self.files[path], if aligned { 8192 } else { 5000 });
        match range {
            Range::Append => (length, 32_768),
            Range::Start => (0, piece),
            Range::End => (length.saturating_sub(piece), piece),
            Range::Extend => (length.saturating_sub(2000), piece),
        }
    }

    fn write(&mut self, path: &str, range: Range, aligned: bool, direct: bool) {
        let (offset, len) = self.span(path, range, aligned);
        self.tag += 1;
        let durability = Durability::None;
        self.ops.push(Op::Write { path: path.into(), offset, len, tag: self.tag, direct, durability });
        let length = self.files.get_mut(path).expect("it exists");
        *length = (*length).max(offset + len);
    }

    /// Adds a core operation, preceded by what it needs.
    pub(crate) fn core(&mut self, core: &Core) {
        match *core {
            Core::Creat(path) => {
                self.parent_exists(path);
                if self.files.contains_key(path) {
                    self.unlink(path);
                }
                self.ops.push(Op::Create { path: path.into(), mode: 0o777, exclusive: true });
                self.files.insert(path.into(), 0);
            }
            Core::Mkdir(path) => {
                if self.dirs.contains(path) {
                    let below = format!("{path}/");
                    let inside: Vec<String> =
                        self.files.keys().filter(|file| file.starts_with(&below)).cloned().collect();
                    inside.iter().for_each(|file| self.unlink(file));
                    self.ops.push(Op::Rmdir { path: path.into() });
                }
                self.mkdir(path);
            }
            Core::Falloc(path, mode, range) => {
                self.has_data(path);
                let (offset, len) = self.span(path, range, false);
                self.ops.push(Op::Fallocate { path: path.into(), mode, offset, len });
            }
            Core::Write(path, range) => {
                if range != Range::Append {
                    self.has_data(path);
                }
                self.file_exists(path);
                self.write(path, range, false, false);
            }
            Core::DirectWrite(path, range) | Core::MmapWrite(path, range) => {
                if range != Range::Append {
                    self.has_data(path);
                }
                self.file_exists(path);
                let mapped = matches!(core, Core::MmapWrite(..));
                self.write(path, range, true, !mapped);
                if mapped {
                    self.ops.push(Op::Fdatasync { path: path.into() });
                }
            }
            Core::Link(from, to) => {
                self.parent_exists(from);
                self.parent_exists(to);
                self.file_exists(from);
                if self.files.contains_key(to) {
                    self.unlink(to);
                }
                self.ops.push(Op::Link { from: from.into(), to: to.into() });
                self.files.insert(to.into(), self.files[from]);
            }
            Core::Symlink(from, to) => {
                self.parent_exists(to);
                if self.files.contains_key(to) {
                    self.unlink(to);
                }
                // The target is relative to the link's directory, so that the link leads to the
                // file.
                let target = if to.contains('/') { format!("../{from}") } else { from.to_owned() };
                self.ops.push(Op::Symlink { target, path: to.into() });
                self.files.insert(to.into(), self.files.get(from).copied().unwrap_or(0));
            }
            Core::Unlink(path) | Core::Remove(path) => {
                self.file_exists(path);
                self.unlink(path);
            }
            Core::Rename(from, to) => self.rename(from, to),
            Core::SetXattr(path) => {
                self.file_exists(path);
                self.set_xattr(path);
            }
            Core::RemoveXattr(path) => {
                self.file_exists(path);
                if !self.with_xattr.contains(path) {
                    self.set_xattr(path);
                }
                self.ops.push(Op::RemoveXattr { path: path.into(), name: XATTR.into() });
                self.with_xattr.remove(path);
            }
            Core::Truncate(path, size) => {
                self.has_data(path);
                self.ops.push(Op::Truncate { path: path.into(), size });
                self.files.insert(path.into(), size);
            }
            Core::Fdatasync(path) => {
                self.file_exists(path);
                self.ops.push(Op::Fdatasync { path: path.into() });
            }
        }
    }

    fn set_xattr(&mut self, path: &str) {
        let (name, value) = (XATTR.into(), b"val1".to_vec());
        self.ops.push(Op::SetXattr { path: path.into(), name, value, mode: XattrMode::Any });
        self.with_xattr.insert(path.into());
    }

    fn rename(&mut self, from: &'static str, to: &'static str) {
        self.parent_exists(to);
        if from.contains("foo") || from.contains("bar") {
            self.file_exists(from);
            let length = self.files.remove(from).expect("it exists");
            self.files.insert(to.into(), length);
        } else {
            if !self.dirs.contains(from) {
                self.mkdir(from);
            }
            let below = format!("{from}/");
            let moved: Vec<String> =
                self.files.keys().filter(|file| file.starts_with(&below)).cloned().collect();
            for file in moved {
                let length = self.files.remove(&file).expect("it is there");
                self.files.insert(format!("{to}/{}", &file[below.len()..]), length);
            }
            self.dirs.remove(from);
            self.dirs.insert(to.into());
        }
        self.ops.push(Op::Rename { from: from.into(), to: to.into(), mode: RenameMode::Replace });
    }

    /// Adds a persistence point, preceded by what it names.
    pub(crate) fn persist(&mut self, persist: Persist) {
        match persist {
            Persist::None => {}
            Persist::Sync => self.ops.push(Op::Sync),
            Persist::Fsync(path) => {
                if path.contains("foo") || path.contains("bar") {
                    self.file_exists(path);
                } else if !path.is_empty() && !self.dirs.contains(path) {
                    self.mkdir(path);
                }
                self.ops.push(Op::Fsync { path: path.into() });
            }
        }
    }
}
