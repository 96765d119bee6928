//! `extant tree`.

use crate::args::TreeArgs;
use crate::failure::Failure;
use crate::image_path::ImagePath;
use crate::json::{self, Bytes, kind_name};
use crate::output::{Output, outln};
use crate::session::{Access, Session};
use extant_format::FileKind;
use extant_fs::{Error, Follow, Volume, WalkEntry, WalkOptions, quote};

pub(crate) fn run(session: &mut Session, args: &TreeArgs) -> Result<(), Failure> {
    let volume = session.volume(&args.place, &args.open, Access::Metadata)?;
    let rt = session.rt.clone();
    rt.block_on(show(session, args, &volume))?
}

async fn show(session: &mut Session, args: &TreeArgs, volume: &Volume) -> Result<(), Failure> {
    let place = &args.place;
    let at = |error| Failure::at(place, error);
    let top = place.resolve(volume, Follow::Yes).await.map_err(at)?;
    if top.kind() != Some(FileKind::Directory) {
        return Err(at(Error::NotADirectory(quote(&place.path))));
    }
    let depth = args.depth.map(|depth| depth as usize);
    let mut walk =
        volume.walk(&top, WalkOptions { inodes: false, depth, ..Default::default() }).await.map_err(at)?;
    let mut drawing: Box<dyn Drawing> = match args.json {
        false => Box::new(Lines::default()),
        true => Box::new(Nested::default()),
    };
    drawing.begin(&mut session.out, place)?;
    while let Some(next) = walk.next().await {
        match next {
            Ok(entry) => drawing.entry(&mut session.out, &entry)?,
            Err(error) => session.fail_walk(place, error),
        }
    }
    drawing.end(&mut session.out, session.quiet)
}

trait Drawing {
    fn begin(&mut self, out: &mut Output, place: &ImagePath) -> Result<(), Failure>;
    fn entry(&mut self, out: &mut Output, entry: &WalkEntry) -> Result<(), Failure>;
    fn end(&mut self, out: &mut Output, quiet: bool) -> Result<(), Failure>;
}

/// Human-readable output.
#[derive(Default)]
struct Lines {
    /// The branches in front of names, for all open depths.
    indent: String,
    /// Length of `indent` at each depth.
    lengths: Vec<usize>,
    directories: u64,
    others: u64,
}

impl Drawing for Lines {
    fn begin(&mut self, out: &mut Output, place: &ImagePath) -> Result<(), Failure> {
        self.lengths.push(0);
        outln!(out, "{}", quote(&place.path))
    }

    fn entry(&mut self, out: &mut Output, entry: &WalkEntry) -> Result<(), Failure> {
        self.lengths.truncate(entry.depth);
        self.indent.truncate(self.lengths[entry.depth - 1]);
        let branch = if entry.is_last { "└── " } else { "├── " };
        out.write(self.indent.as_bytes())?;
        outln!(out, "{branch}{}", quote(&entry.name))?;
        self.indent.push_str(if entry.is_last { "    " } else { "│   " });
        self.lengths.push(self.indent.len());
        match entry.kind {
            Some(FileKind::Directory) => self.directories += 1,
            _ => self.others += 1,
        }
        Ok(())
    }

    fn end(&mut self, out: &mut Output, quiet: bool) -> Result<(), Failure> {
        if quiet {
            return Ok(());
        }
        let count = |n: u64, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
        let directories = count(self.directories, "directory", "directories");
        outln!(out, "\n{directories}, {}", count(self.others, "other", "others"))
    }
}

/// Machine-readable output: `{"name": …, "inode": …, "kind": …, "contents": […]}`, written
/// incrementally.
#[derive(Default)]
struct Nested {
    /// For each open directory, whether it already has an element.
    filled: Vec<bool>,
}

impl Nested {
    fn close_to(&mut self, out: &mut Output, depth: usize) -> Result<(), Failure> {
        while self.filled.len() > depth {
            self.filled.pop();
            out.write(b"]}")?;
        }
        Ok(())
    }
}

impl Drawing for Nested {
    fn begin(&mut self, out: &mut Output, place: &ImagePath) -> Result<(), Failure> {
        self.filled.push(false);
        out.write(b"{\"path\":")?;
        json::print_compact(out, &Bytes(&place.path))?;
        out.write(b",\"kind\":\"directory\",\"contents\":[")
    }

    fn entry(&mut self, out: &mut Output, entry: &WalkEntry) -> Result<(), Failure> {
        self.close_to(out, entry.depth)?;
        if let Some(filled) = self.filled.last_mut()
            && std::mem::replace(filled, true)
        {
            out.write(b",")?;
        }
        out.write(b"\n")?;
        // The object stays open for its contents.
        let kind = kind_name(entry.kind);
        out.write(b"{\"name\":")?;
        json::print_compact(out, &Bytes(&entry.name))?;
        out.write(format!(",\"inode\":{},\"kind\":\"{kind}\"", entry.number).as_bytes())?;
        if entry.kind == Some(FileKind::Directory) {
            self.filled.push(false);
            out.write(b",\"contents\":[")
        } else {
            out.write(b"}")
        }
    }

    fn end(&mut self, out: &mut Output, _quiet: bool) -> Result<(), Failure> {
        self.close_to(out, 0)?;
        out.write(b"\n")
    }
}
