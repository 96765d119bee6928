//! Differences between two file trees, each on a volume or in a host directory: by path, attribute
//! and contents.
//!
//! Both trees are walked in parallel, with names in byte order. Memory holds only the names of open
//! directories and the identities of files with several names. Contents are streamed; holes common
//! to both sides are skipped.

mod compare_contents;
mod link_pairs;
mod side;
mod volume;

pub use volume::{Fields, Value, VolumeDifference, compare_volumes};

use crate::export::file_contents::Allowance;
use extant_format::{DeviceNumber, FileKind, Inode, InodeFlags, Timestamp};
use extant_fs::{Error, Volume};
use link_pairs::Pairs;
use side::{Attributes, Item, Walker, order};
use std::cmp::Ordering;
use std::io;
use std::ops::ControlFlow::{self, Break, Continue};
use std::path::Path;
use thiserror::Error as ThisError;

/// A file tree; its top may be of any kind.
#[derive(Clone, Copy, Debug)]
pub enum Tree<'a> {
    /// A file of a volume and everything below it.
    Volume {
        /// The volume.
        volume: &'a Volume,
        /// The file.
        top: &'a Inode,
    },
    /// A file of the host and everything below it; symbolic links are not followed.
    Host(&'a Path),
}

/// One of the two trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first.
    A,
    /// The second.
    B,
}

/// Which times to compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Times {
    /// None.
    None,
    /// The modification time.
    #[default]
    Modified,
    /// Also access, inode change and creation time. Host directories have no creation time.
    All,
}

/// Which properties to compare, and how much to report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Times to compare.
    pub times: Times,
    /// Report at most one difference per path, and read no further.
    pub brief: bool,
}

/// Names of the times of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeOf {
    /// Last access.
    Access,
    /// Last change of contents.
    Modification,
    /// Last change of the inode.
    Change,
    /// Creation.
    Creation,
}

/// A difference at a path; in pairs, side A comes first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// The path exists on one side only, along with everything below it.
    Only(Side, FileKind),
    /// The files differ in kind; nothing else is compared.
    Kind(FileKind, FileKind),
    /// Permissions, including set-ID bits and sticky bit.
    Mode(u16, u16),
    /// Owners.
    Uid(u32, u32),
    /// Groups.
    Gid(u32, u32),
    /// Project IDs. A host directory has none to compare.
    Project(u32, u32),
    /// A time.
    Time(TimeOf, Timestamp, Timestamp),
    /// Flags as set by `chattr`. A host directory has none to compare.
    Flags(InodeFlags, InodeFlags),
    /// Numbers of a device node.
    Device(DeviceNumber, DeviceNumber),
    /// Targets of a symbolic link.
    Target(Vec<u8>, Vec<u8>),
    /// An extended attribute or access control list.
    Attribute {
        /// The attribute's full name.
        name: Vec<u8>,
        /// The value in A, if present.
        a: Option<Vec<u8>>,
        /// The value in B, if present.
        b: Option<Vec<u8>>,
    },
    /// An earlier path of the same file. Only one side has one, or they differ.
    Links(Option<Vec<u8>>, Option<Vec<u8>>),
    /// Sizes of a regular file.
    Size(u64, u64),
    /// Contents, up to the size of the shorter file.
    Contents {
        /// Offset of the first differing byte, counted from 0.
        first: u64,
    },
}

/// Why something could not be compared.
#[derive(Debug, ThisError)]
pub enum Unreadable {
    /// An error of the volume.
    #[error(transparent)]
    Volume(#[from] Error),
    /// An error of the host.
    #[error(transparent)]
    Host(#[from] io::Error),
}

/// Receives the results of a comparison. Paths are relative to the tops, whose own path is empty.
pub trait Report {
    /// Called for each difference. `Break` ends the comparison.
    fn difference(&mut self, path: &[u8], difference: &Difference) -> ControlFlow<()>;
    /// Something on one side is unreadable and not compared further. For contents and directories
    /// it is only a part ([`Error::Lost`]); the rest is compared.
    fn unreadable(&mut self, side: Side, path: &[u8], error: Unreadable);
    /// Content bytes read since the last call, both sides together; holes count.
    fn advanced(&mut self, bytes: u64);
}

/// Compares two trees, and returns the number of differences reported.
///
/// Permissions of symbolic links, sizes of directories and placement on the volume are not
/// compared. Times are compared to the second if either side stores no fractions. An empty
/// `lost+found` in the root of a volume does not count as a difference from a host directory.
pub async fn compare(a: Tree<'_>, b: Tree<'_>, options: Options, report: &mut dyn Report) -> u64 {
    let mut comparison = Comparison {
        a,
        b,
        options,
        report,
        pairs: Pairs::default(),
        allowances: [a.allowance(), b.allowance()],
        found: 0,
    };
    // A break is the caller's choice.
    let _ = comparison.trees().await;
    comparison.found
}

impl Tree<'_> {
    fn allowance(&self) -> Option<Allowance> {
        match self {
            Self::Volume { volume, .. } => Some(Allowance::of(volume)),
            Self::Host(_) => None,
        }
    }
}

struct Comparison<'a> {
    a: Tree<'a>,
    b: Tree<'a>,
    options: Options,
    report: &'a mut dyn Report,
    pairs: Pairs,
    /// For each volume, the amount of contents that may still be read.
    allowances: [Option<Allowance>; 2],
    found: u64,
}

/// Which part of a comparison has ended.
enum Ended {
    /// The comparison of this path.
    Path,
    /// The whole comparison.
    All,
}

type Flow = ControlFlow<Ended>;

/// Converts the result for one path to that for the whole comparison: the end of one path ends
/// nothing else.
fn whole(flow: Flow) -> Flow {
    match flow {
        Break(Ended::All) => Break(Ended::All),
        Break(Ended::Path) | Continue(()) => Continue(()),
    }
}

impl Comparison<'_> {
    /// Reports a difference.
    fn tell(&mut self, path: &[u8], difference: Difference) -> Flow {
        self.found += 1;
        match self.report.difference(path, &difference) {
            Break(()) => Break(Ended::All),
            Continue(()) if self.options.brief => Break(Ended::Path),
            Continue(()) => Continue(()),
        }
    }

    async fn trees(&mut self) -> Flow {
        let (a, b) = (self.a, self.b);
        let (top_a, top_b) = (a.top(), b.top());
        let (top_a, top_b) = match (top_a, top_b) {
            (Ok(a), Ok(b)) => (a, b),
            (a, b) => {
                for (side, top) in [(Side::A, a), (Side::B, b)] {
                    if let Err(error) = top {
                        self.report.unreadable(side, b"", error);
                    }
                }
                return Continue(());
            }
        };
        whole(self.files(&top_a, &top_b).await)?;
        if !(top_a.is_directory() && top_b.is_directory()) {
            return Continue(());
        }
        let mut walks = match (a.walk().await, b.walk().await) {
            (Ok(a), Ok(b)) => [a, b],
            (a, b) => {
                for (side, walk) in [(Side::A, a.err()), (Side::B, b.err())] {
                    if let Some(error) = walk {
                        self.report.unreadable(side, b"", error);
                    }
                }
                return Continue(());
            }
        };
        let mut unread = [Vec::new(), Vec::new()];
        let [mut next_a, mut next_b] = [None, None];
        loop {
            if next_a.is_none() {
                next_a = self.next(Side::A, &mut walks, &mut unread).await;
            }
            if next_b.is_none() {
                next_b = self.next(Side::B, &mut walks, &mut unread).await;
            }
            let order = match (&next_a, &next_b) {
                (None, None) => return Continue(()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => order(&a.path, &b.path),
            };
            match order {
                Ordering::Equal => {
                    if let (Some(a), Some(b)) = (next_a.take(), next_b.take()) {
                        if a.is_directory() != b.is_directory() {
                            walks.iter_mut().for_each(Walker::skip);
                        }
                        whole(self.files(&a, &b).await)?;
                    }
                }
                Ordering::Less => self.only(Side::A, next_a.take(), &mut walks, &unread)?,
                Ordering::Greater => self.only(Side::B, next_b.take(), &mut walks, &unread)?,
            }
        }
    }

    /// The next name of one side. Unreadable names are reported, and their paths are remembered.
    async fn next(
        &mut self,
        side: Side,
        walks: &mut [Walker; 2],
        unread: &mut [Vec<Vec<u8>>; 2],
    ) -> Option<Item> {
        loop {
            match walks[side as usize].next().await? {
                Ok(item) => return Some(item),
                Err((path, error)) => {
                    self.report.unreadable(side, &path, error);
                    unread[side as usize].push(path);
                }
            }
        }
    }

    /// Reports a name that only one side has, unless it was unreadable on the other side.
    fn only(
        &mut self,
        side: Side,
        item: Option<Item>,
        walks: &mut [Walker; 2],
        unread: &[Vec<Vec<u8>>; 2],
    ) -> Flow {
        let Some(item) = item else { return Continue(()) };
        let other = 1 - side as usize;
        let is_below = |dir: &Vec<u8>| {
            item.path
                .strip_prefix(&dir[..])
                .is_some_and(|rest| dir.is_empty() || rest.is_empty() || rest[0] == b'/')
        };
        if unread[other].iter().any(is_below) {
            walks[side as usize].skip();
            return Continue(());
        }
        let (tree, opposite) = match side {
            Side::A => (&self.a, &self.b),
            Side::B => (&self.b, &self.a),
        };
        // Names below `lost+found` are reported one by one.
        if item.path == b"lost+found"
            && item.is_directory()
            && tree.is_root()
            && matches!(opposite, Tree::Host(_))
        {
            return Continue(());
        }
        walks[side as usize].skip();
        whole(self.tell(&item.path, Difference::Only(side, item.attributes.kind)))
    }

    /// Compares two files at the same path; for directories, not their entries.
    async fn files(&mut self, a: &Item, b: &Item) -> Flow {
        let path = &a.path;
        if a.is_same(b, &self.a, &self.b) {
            return Continue(());
        }
        let (left, right) = (&a.attributes, &b.attributes);
        if left.kind != right.kind {
            return self.tell(path, Difference::Kind(left.kind, right.kind));
        }
        if left.kind != FileKind::Directory && (left.links > 1 || right.links > 1) {
            match self.pairs.meet(left.identity, right.identity, path) {
                link_pairs::Met::Again => return Continue(()),
                link_pairs::Met::First => {}
                link_pairs::Met::Apart(a, b) => self.tell(path, Difference::Links(a, b))?,
            }
        }
        self.attributes(path, left, right)?;
        self.extended(a, b).await?;
        match left.kind {
            FileKind::Symlink => self.targets(a, b).await,
            FileKind::Regular => self.contents(a, b).await,
            _ => Continue(()),
        }
    }

    /// Compares fields of the inodes.
    fn attributes(&mut self, path: &[u8], a: &Attributes, b: &Attributes) -> Flow {
        // Linux ignores permissions of symbolic links.
        if a.mode != b.mode && a.kind != FileKind::Symlink {
            self.tell(path, Difference::Mode(a.mode, b.mode))?;
        }
        if a.uid != b.uid {
            self.tell(path, Difference::Uid(a.uid, b.uid))?;
        }
        if a.gid != b.gid {
            self.tell(path, Difference::Gid(a.gid, b.gid))?;
        }
        if let (Some(a), Some(b)) = (a.project, b.project)
            && a != b
        {
            self.tell(path, Difference::Project(a, b))?;
        }
        if let (Some(a), Some(b)) = (a.flags, b.flags)
            && a != b
        {
            self.tell(path, Difference::Flags(a, b))?;
        }
        if let (Some(a), Some(b)) = (a.device, b.device)
            && a != b
        {
            self.tell(path, Difference::Device(a, b))?;
        }
        let times = match self.options.times {
            Times::None => 0..0,
            Times::Modified => 0..1,
            Times::All => 0..4,
        };
        let fractions = a.has_fractions && b.has_fractions;
        for n in times {
            let (Some(left), Some(right)) = (a.times[n], b.times[n]) else { continue };
            if left.seconds != right.seconds || (fractions && left.nanos != right.nanos) {
                self.tell(path, Difference::Time(side::TIMES[n], left, right))?;
            }
        }
        Continue(())
    }

    async fn extended(&mut self, a: &Item, b: &Item) -> Flow {
        let (Some(left), Some(right)) = (
            self.readable(Side::A, &a.path, a.extended(&self.a).await),
            self.readable(Side::B, &b.path, b.extended(&self.b).await),
        ) else {
            return Continue(());
        };
        let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (None, None) => return Continue(()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => a.name.cmp(&b.name),
            };
            let one = if order.is_le() { left.next() } else { None };
            let other = if order.is_ge() { right.next() } else { None };
            let name =
                one.as_ref().or(other.as_ref()).map(|attribute| attribute.name.clone()).unwrap_or_default();
            let (one, other) = (one.map(|one| one.value), other.map(|other| other.value));
            if one != other {
                self.tell(&a.path, Difference::Attribute { name, a: one, b: other })?;
            }
        }
    }

    async fn targets(&mut self, a: &Item, b: &Item) -> Flow {
        let (Some(left), Some(right)) = (
            self.readable(Side::A, &a.path, a.target(&self.a).await),
            self.readable(Side::B, &b.path, b.target(&self.b).await),
        ) else {
            return Continue(());
        };
        match left == right {
            true => Continue(()),
            false => self.tell(&a.path, Difference::Target(left, right)),
        }
    }

    async fn contents(&mut self, a: &Item, b: &Item) -> Flow {
        let (size_a, size_b) = (a.attributes.size, b.attributes.size);
        if size_a != size_b {
            self.tell(&a.path, Difference::Size(size_a, size_b))?;
        }
        let [allowance_a, allowance_b] = &mut self.allowances;
        let left = compare_contents::open(a, &self.a, allowance_a).await;
        let right = compare_contents::open(b, &self.b, allowance_b).await;
        let (Some(left), Some(right)) =
            (self.readable(Side::A, &a.path, left), self.readable(Side::B, &b.path, right))
        else {
            return Continue(());
        };
        match compare_contents::first_difference(&a.path, left, right, self.report).await {
            Ok(None) => Continue(()),
            Ok(Some(first)) => self.tell(&a.path, Difference::Contents { first }),
            Err((side, error)) => {
                self.report.unreadable(side, &a.path, error);
                Continue(())
            }
        }
    }

    /// Reports a read error, if there is one.
    fn readable<T>(&mut self, side: Side, path: &[u8], read: Result<T, Unreadable>) -> Option<T> {
        read.map_err(|error| self.report.unreadable(side, path, error)).ok()
    }
}
