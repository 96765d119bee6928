//! `extant ls`.

use crate::args::LsArgs;
use crate::failure::Failure;
use crate::globs;
use crate::image_path::ImagePath;
use crate::json::{self, Bytes, Time, kind_name};
use crate::output::{Output, outln};
use crate::session::{Access, Session};
use crate::values;
use extant_format::{FileKind, Inode, InodeNumber};
use extant_fs::{Follow, Volume, WalkEntry, WalkOptions, quote};
use serde::Serialize;
use std::cmp::Reverse;
use std::io::IsTerminal;

pub(crate) fn run(session: &mut Session, args: &LsArgs) -> Result<(), Failure> {
    let mut listing = Listing { args, first: true, has_colour: has_colour(&args.flags.color) };
    if args.json {
        session.out.write(b"[")?;
    }
    let places = globs::expanded(session, &args.places, &args.open)?;
    for (n, place) in places.iter().enumerate() {
        let volume = match session.volume(place, &args.open, Access::Metadata) {
            Ok(volume) => volume,
            Err(failure) => {
                session.fail(failure);
                continue;
            }
        };
        let headed = places.len() > 1 && !args.json && !args.flags.directory;
        if headed {
            outln!(session.out, "{}{}:", if n > 0 { "\n" } else { "" }, place.quoted())?;
        }
        let rt = session.rt.clone();
        match rt.block_on(listing.list(session, place, &volume))? {
            Err(failure @ (Failure::Closed | Failure::Stdout(_))) => return Err(failure),
            Err(failure) => session.fail(failure),
            Ok(()) => {}
        }
    }
    if args.json {
        session.out.write(b"\n]\n")?;
    }
    Ok(())
}

struct Listing<'a> {
    args: &'a LsArgs,
    first: bool,
    has_colour: bool,
}

/// Whether names are coloured: by default on a terminal, unless `NO_COLOR` (<https://no-color.org>)
/// or a terminal without colours is set.
fn has_colour(when: &str) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match when {
        "always" => true,
        "auto" => {
            std::io::stdout().is_terminal()
                && !is_set("NO_COLOR")
                && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
        }
        _ => false,
    }
}

/// The colour that ls(1) uses for a kind of file, as the number in an escape sequence.
fn colour(item: &Item<'_>) -> Option<&'static str> {
    let is_run = item.inode.is_some_and(|inode| inode.mode() & 0o111 != 0);
    Some(match item.kind? {
        FileKind::Directory => "01;34",
        FileKind::Symlink => "01;36",
        FileKind::CharDevice | FileKind::BlockDevice => "01;33",
        FileKind::Fifo => "33",
        FileKind::Socket => "01;35",
        FileKind::Regular if is_run => "01;32",
        FileKind::Regular => return None,
    })
}

/// A name to list.
struct Item<'a> {
    path: &'a [u8],
    number: InodeNumber,
    kind: Option<FileKind>,
    inode: Option<&'a Inode>,
    target: Option<Vec<u8>>,
}

impl Listing<'_> {
    async fn list(
        &mut self,
        session: &mut Session,
        place: &ImagePath,
        volume: &Volume,
    ) -> Result<(), Failure> {
        let at = |error| Failure::at(place, error);
        let follow = if self.args.flags.directory || self.args.flags.long { Follow::No } else { Follow::Yes };
        let top = place.resolve(volume, follow).await.map_err(at)?;
        let has_rank = self.args.flags.by_time || self.args.flags.by_size;
        let is_sorted = has_rank || self.args.flags.reverse;
        let wants_inodes = self.args.flags.long || self.args.json || has_rank;
        let mut sorted = Vec::new();
        if self.args.flags.directory || top.kind() != Some(FileKind::Directory) {
            let target = self.target(session, place, volume, &top).await;
            let item =
                Item { path: &place.path, number: top.number, kind: top.kind(), inode: Some(&top), target };
            return self.print(&mut session.out, volume, &item);
        }
        let depth = (!self.args.flags.recursive).then_some(1);
        let mut walk = volume
            .walk(&top, WalkOptions { inodes: wants_inodes, depth, ..Default::default() })
            .await
            .map_err(at)?;
        while let Some(next) = walk.next().await {
            let entry = match next {
                Ok(entry) => entry,
                Err(error) => {
                    session.fail_walk(place, error);
                    continue;
                }
            };
            if !self.args.flags.all && walk.path().split(|&b| b == b'/').any(|name| name.starts_with(b".")) {
                continue;
            }
            let target = match &entry.inode {
                Some(inode) => {
                    let place = ImagePath { image: place.image.clone(), path: place.below(walk.path()) };
                    self.target(session, &place, volume, inode).await
                }
                None => None,
            };
            if is_sorted {
                sorted.push((walk.path().to_vec(), entry, target));
                continue;
            }
            let item = Item {
                path: walk.path(),
                number: entry.number,
                kind: entry.kind,
                inode: entry.inode.as_ref(),
                target,
            };
            self.print(&mut session.out, volume, &item)?;
        }
        // Names arrive in order, and the sort keeps the order of names of equal rank.
        sorted.sort_by_cached_key(|(_, entry, _)| {
            entry.inode.as_ref().filter(|_| has_rank).map(|inode| match self.args.flags.by_size {
                true => (Reverse(i128::from(inode.size())), 0),
                false => (Reverse(inode.modified().seconds.into()), u32::MAX - inode.modified().nanos),
            })
        });
        if self.args.flags.reverse {
            sorted.reverse();
        }
        for (path, WalkEntry { number, kind, inode, .. }, target) in sorted {
            let item = Item { path: &path, number, kind, inode: inode.as_ref(), target };
            self.print(&mut session.out, volume, &item)?;
        }
        Ok(())
    }

    /// Target of a symbolic link, if it will be shown.
    async fn target(
        &self,
        session: &mut Session,
        place: &ImagePath,
        volume: &Volume,
        inode: &Inode,
    ) -> Option<Vec<u8>> {
        if inode.kind() != Some(FileKind::Symlink) || !(self.args.flags.long || self.args.json) {
            return None;
        }
        match volume.read_link(inode).await {
            Ok(target) => Some(target),
            Err(error) => {
                session.fail(Failure::at(place, error));
                None
            }
        }
    }

    fn print(&mut self, out: &mut Output, volume: &Volume, item: &Item<'_>) -> Result<(), Failure> {
        if self.args.json {
            out.write(if std::mem::take(&mut self.first) { b"\n" } else { b",\n" })?;
            return json::print_compact(out, &JsonItem::new(volume, item));
        }
        let number = if self.args.flags.inode { format!("{:>7} ", item.number.0) } else { String::new() };
        let path = match colour(item).filter(|_| self.has_colour) {
            Some(colour) => format!("\x1b[{colour}m{}\x1b[0m", quote(item.path)),
            None => quote(item.path),
        };
        match item.inode.filter(|_| self.args.flags.long) {
            None => outln!(out, "{number}{path}"),
            Some(inode) => {
                let arrow = item.target.as_ref().map(|t| format!(" -> {}", quote(t))).unwrap_or_default();
                outln!(out, "{number}{} {path}{arrow}", long_line(inode, self.args.flags.human_readable))
            }
        }
    }
}

/// Mode, links, owner, size or device number, and modification time, in columns.
fn long_line(inode: &Inode, is_human: bool) -> String {
    let size = match inode.device() {
        Some(device) => format!("{}, {}", device.major, device.minor),
        None if is_human => values::human(inode.size()),
        None => inode.size().to_string(),
    };
    let owner = format!("{}:{}", inode.uid(), inode.gid());
    let time = extant_format::Timestamp { nanos: 0, ..inode.modified() };
    format!("{} {:3} {owner:>11} {size:>11} {time}", mode_string(inode), inode.links())
}

/// Mode and type in `ls -l` form.
pub(crate) fn mode_string(inode: &Inode) -> String {
    let mode = inode.mode();
    let mut text = String::with_capacity(10);
    text.push(inode.kind().map_or('?', FileKind::letter));
    for (shift, special, set, unset) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => set,
            (true, false) => unset,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[derive(Serialize)]
struct JsonItem<'a> {
    path: Bytes<'a>,
    inode: u32,
    kind: &'static str,
    #[serde(flatten)]
    attributes: Option<JsonAttributes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Bytes<'a>>,
}

#[derive(Serialize)]
pub(crate) struct JsonAttributes {
    mode: u16,
    links: u16,
    uid: u32,
    gid: u32,
    size: u64,
    allocated_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<[u32; 2]>,
    modified: Time,
}

impl<'a> JsonItem<'a> {
    fn new(volume: &Volume, item: &'a Item<'_>) -> Self {
        Self {
            path: Bytes(item.path),
            inode: item.number.0,
            kind: kind_name(item.kind),
            attributes: item.inode.map(|inode| JsonAttributes::new(volume, inode)),
            target: item.target.as_deref().map(Bytes),
        }
    }
}

impl JsonAttributes {
    pub(crate) fn new(volume: &Volume, inode: &Inode) -> Self {
        Self {
            mode: inode.mode() & 0o7777,
            links: inode.links(),
            uid: inode.uid(),
            gid: inode.gid(),
            size: inode.size(),
            allocated_bytes: inode.blocks_512(volume.superblock()).saturating_mul(512),
            device: inode.device().map(|d| [d.major, d.minor]),
            modified: inode.modified().into(),
        }
    }
}
