//! Core operations with arguments within ACE's bounds.

use crate::Fallocate;

/// Range of a write or an allocation, relative to the file's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Range {
    /// 32 KiB at the end.
    Append,
    /// The first 5,000 bytes; 8,192 for an aligned write.
    Start,
    /// The last 5,000 bytes; 8,192 for an aligned write.
    End,
    /// 5,000 bytes, 3,000 of them past the end.
    Extend,
}

/// A core operation and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Core {
    Creat(&'static str),
    Mkdir(&'static str),
    Falloc(&'static str, Fallocate, Range),
    Write(&'static str, Range),
    DirectWrite(&'static str, Range),
    MmapWrite(&'static str, Range),
    Link(&'static str, &'static str),
    Symlink(&'static str, &'static str),
    Unlink(&'static str),
    Remove(&'static str),
    Rename(&'static str, &'static str),
    SetXattr(&'static str),
    RemoveXattr(&'static str),
    Truncate(&'static str, u64),
    Fdatasync(&'static str),
}

const FILES: [&str; 2] = ["foo", "A/foo"];
const SECOND_FILES: [&str; 2] = ["bar", "A/bar"];
const ALL_FILES: [&str; 4] = ["foo", "A/foo", "bar", "A/bar"];
const RANGES: [Range; 4] = [Range::Append, Range::Start, Range::Extend, Range::End];
const ALIGNED: [Range; 3] = [Range::Append, Range::Start, Range::End];

impl Core {
    /// The paths it names.
    pub(crate) fn paths(&self) -> Vec<&'static str> {
        match *self {
            Self::Link(from, to) | Self::Symlink(from, to) | Self::Rename(from, to) => vec![from, to],
            Self::Creat(path)
            | Self::Mkdir(path)
            | Self::Falloc(path, ..)
            | Self::Write(path, _)
            | Self::DirectWrite(path, _)
            | Self::MmapWrite(path, _)
            | Self::Unlink(path)
            | Self::Remove(path)
            | Self::SetXattr(path)
            | Self::RemoveXattr(path)
            | Self::Truncate(path, _)
            | Self::Fdatasync(path) => vec![path],
        }
    }

    /// Whether it is itself a persistence point, so that none follows it.
    pub(crate) fn persists_itself(&self) -> bool {
        matches!(self, Self::Fdatasync(_) | Self::MmapWrite(..))
    }
}

/// Every core operation with every choice of arguments.
pub(crate) fn all_cores() -> Vec<Core> {
    let mut cores: Vec<Core> = FILES.map(Core::Creat).to_vec();
    cores.push(Core::Mkdir("A"));
    let modes = [
        Fallocate::Zero,
        Fallocate::ZeroKeepSize,
        Fallocate::Punch,
        Fallocate::KeepSize,
        Fallocate::Allocate,
    ];
    for file in FILES {
        let falloc = |mode| RANGES.map(|range| Core::Falloc(file, mode, range));
        cores.extend(modes.into_iter().flat_map(falloc));
        cores.extend(RANGES.map(|range| Core::Write(file, range)));
        cores.extend(ALIGNED.map(|range| Core::DirectWrite(file, range)));
        cores.extend(ALIGNED.map(|range| Core::MmapWrite(file, range)));
        cores.extend([Core::Truncate(file, 0), Core::Truncate(file, 2500)]);
        cores.extend([Core::SetXattr(file), Core::RemoveXattr(file), Core::Fdatasync(file)]);
    }
    for from in ALL_FILES {
        for to in SECOND_FILES.into_iter().filter(|&to| to != from) {
            cores.extend([Core::Link(from, to), Core::Symlink(from, to), Core::Rename(from, to)]);
        }
        cores.extend([Core::Unlink(from), Core::Remove(from)]);
    }
    cores.push(Core::Rename("A", "B"));
    cores
}

/// Files worth syncing after a sequence: those it names, their siblings and their parents.
pub(crate) fn related_files(sequence: &[Core]) -> Vec<&'static str> {
    let mut files = Vec::new();
    for path in sequence.iter().flat_map(Core::paths) {
        let (sibling, parent) = match path {
            "foo" => ("bar", ""),
            "bar" => ("foo", ""),
            "A/foo" => ("A/bar", "A"),
            "A/bar" => ("A/foo", "A"),
            "A" => ("B", ""),
            "B" => ("A", ""),
            other => unreachable!("{other} is not in ACE's bounds"),
        };
        files.extend([path, sibling, parent]);
    }
    files.sort_unstable();
    files.dedup();
    files
}
