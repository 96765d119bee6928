//! `extant rescue` and `extant undelete`.

use crate::args::{RescueArgs, UndeleteArgs};
use crate::failure::{Exit, Failure};
use crate::image_path::ImagePath;
use crate::json::{self, Bytes};
use crate::output::outln;
use crate::own_image;
use crate::progress::Progress;
use crate::report;
use crate::session::{Access, Session};
use extant::Part;
use extant_block::Spans;
use extant_fs::quote;
use extant_image::export::{Archive, Compression, ExportError, Loss};
use extant_image::rescue::{Destination, RescueOptions, Rescued, State, Summary, Witness, holes_of, map_of};
use serde::Serialize;
use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

pub(crate) fn run(session: &mut Session, args: &RescueArgs) -> Result<(), Failure> {
    let place = ImagePath { image: args.image.clone(), path: b"/".to_vec() };
    let device = session.device(&place, Access::Contents)?;
    let capacity = device.limits().capacity_bytes;
    let offset = match args.map {
        Some(_) => offset_of_part(session, &args.image)?,
        None => 0,
    };
    let known = args.map.as_deref().map(|map| read_map(map, offset, capacity)).transpose()?.flatten();
    let options = RescueOptions {
        superblock_offset: session.any_superblock_byte(&device, &args.image, args.open.superblock)?,
        ignore_journal: args.open.ignore_journal,
        holes: known.clone().unwrap_or_default(),
    };
    let output = Output { path: &args.output, is_json: args.json, capacity, work: Work::Rescue };
    let summary = output.fill(session, &place, async |destination, listing| {
        extant_image::rescue::rescue(device, &options, destination, listing).await
    })?;
    if let (Some(map), None) = (&args.map, &known) {
        let text = map_of(&summary.unread, offset, capacity);
        // The map may have the same name as something that was just written.
        let written = File::create_new(map).and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| Failure::host(map, error))?;
        let map = quote(map.as_os_str().as_bytes());
        session.summary(&format!("{map}: lists what could not be read"));
    }
    Ok(())
}

pub(crate) fn undelete(session: &mut Session, args: &UndeleteArgs) -> Result<(), Failure> {
    let place = ImagePath { image: args.image.clone(), path: b"/".to_vec() };
    let device = session.device(&place, Access::Contents)?;
    let superblock_offset = session.any_superblock_byte(&device, &args.image, args.superblock)?;
    let options = RescueOptions { superblock_offset, ..RescueOptions::default() };
    let capacity = device.limits().capacity_bytes;
    let output = Output { path: &args.output, is_json: args.json, capacity, work: Work::Undelete };
    output.fill(session, &place, async |destination, listing| {
        extant_image::undelete::undelete(device, &options, destination, listing).await
    })?;
    Ok(())
}

/// The output that the user asked for.
struct Output<'a> {
    path: &'a Path,
    is_json: bool,
    /// Size of the image.
    capacity: u64,
    work: Work,
}

impl Output<'_> {
    /// Calls `write` to fill the output, and prints the result.
    fn fill(
        self,
        session: &mut Session,
        place: &ImagePath,
        write: impl AsyncFnOnce(Destination<'_>, &mut dyn Witness) -> Result<Summary, ExportError>,
    ) -> Result<Summary, Failure> {
        let Self { path: output, is_json: as_json, capacity, work } = self;
        let to = quote(output.as_os_str().as_bytes());
        let host = |error| Failure::host(output, error);
        let is_stdout = output.as_os_str() == "-";
        if is_stdout && as_json {
            let told = "standard output takes the archive or the JSON, not both; name a file or a directory";
            return Err(Failure::Usage(told.into()));
        }
        if is_stdout && std::io::stdout().is_terminal() {
            return Err(Failure::Usage(
                "an archive is not written to a terminal; name a file or a pipe".into(),
            ));
        }
        if !is_stdout {
            refuse_own_volume(output, &place.image)?;
        }
        let rt = session.rt.clone();
        let progress = Progress::new(capacity, session.quiet);
        let style = match (is_stdout, as_json) {
            (true, _) => Style::Errors,
            (_, true) => Style::Json { is_first: true },
            _ => Style::Text,
        };
        let stdout = if is_stdout { Some(session.out.duplicate()?) } else { None };
        let claim = if is_archive(output) && !is_stdout {
            Some(Session::claim_output(output, &place.image)?)
        } else {
            None
        };
        let mut listing = Listing { session, work, place, style, progress, failure: None };
        let done = if let Some(stdout) = stdout {
            let mut out = std::io::BufWriter::with_capacity(256 << 10, stdout);
            let done = rt.block_on(write(Destination::Archive(&mut out), &mut listing))?;
            done.and_then(|summary| Ok(out.flush().map(|()| summary)?))
        } else if is_archive(output) {
            let other =
                || Failure::Usage(format!("{to}: archives are compressed with gzip, zstd or xz only"));
            let compression = Compression::of(output).ok_or_else(other)?;
            let mut archive = Archive::create(output, compression).map_err(host)?;
            let done = rt.block_on(write(Destination::Archive(&mut archive), &mut listing))?;
            done.and_then(|summary| Ok(archive.finish().map(|()| summary)?))
        } else {
            make_directory(output).map_err(host)?;
            rt.block_on(write(Destination::Directory(output), &mut listing))?
        };
        listing.progress.finish();
        drop(claim);
        let summary = match done {
            Ok(summary) => summary,
            // The volume could not be opened.
            Err(ExportError::Volume(error)) => {
                return Err(listing.session.not_rescued(&place.image, error));
            }
            Err(error) => return Err(report::failure(place, &to, error)),
        };
        listing.end(&summary)?;
        if let Some(failure) = listing.failure {
            return Err(failure);
        }
        for note in &summary.notes {
            session.complain(&format!("{}: {note}", place.image_quoted()));
        }
        session.summary(&format!("{to}: {}", summary.told(work.lost_word())));
        // A deleted file that was overwritten is not damage.
        if !summary.notes.is_empty() || (work == Work::Rescue && !summary.is_whole()) {
            session.exit_with(Exit::Corrupt);
        }
        Ok(summary)
    }
}

/// Whether the output is an archive, not a directory.
fn is_archive(output: &Path) -> bool {
    const ENDINGS: [&str; 12] =
        ["tar", "gz", "tgz", "zst", "tzst", "xz", "txz", "bz2", "tbz", "tbz2", "lz4", "lzma"];
    match output.metadata() {
        Ok(there) => !there.is_dir(),
        Err(_) => output.extension().and_then(|ending| ending.to_str()).is_some_and(|e| ENDINGS.contains(&e)),
    }
}

/// Creates a directory, or accepts an empty one.
fn make_directory(output: &Path) -> std::io::Result<()> {
    match std::fs::create_dir(output) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            match std::fs::read_dir(output)?.next().is_some() {
                true => Err(std::io::Error::other("is not empty; name a new directory, or an empty one")),
                false => Ok(()),
            }
        }
        made => made,
    }
}

/// Fails if the output is on the volume that is read, where it would overwrite the data to be
/// saved, or if it is a disk, because a typing error would destroy its contents.
fn refuse_own_volume(output: &Path, image: &Path) -> Result<(), Failure> {
    let refuse = |why| Err(Failure::host(output, std::io::Error::other(why)));
    if own_image::is_written_by(image, output) {
        return refuse("is the image that is read, or on it; name another place");
    }
    if output.metadata().is_ok_and(|there| there.file_type().is_block_device()) {
        return refuse("is a disk; name a directory or an archive");
    }
    Ok(())
}

/// Where the selected part of the image begins. Maps describe whole images.
fn offset_of_part(session: &Session, image: &Path) -> Result<u64, Failure> {
    match &session.part {
        Part::Whole => Ok(0),
        Part::Bytes { offset_bytes, .. } => Ok(*offset_bytes),
        Part::Partition(wanted) => {
            let all = session.partitions(image).unwrap_or_default();
            let is_it = |partition: &&extant::Partition| {
                partition.number.to_string() == *wanted || partition.name.as_ref() == Some(wanted)
            };
            let found = all.iter().find(is_it).map(|partition| partition.start_bytes);
            found.ok_or_else(|| Failure::Usage(format!("--map: where does partition {wanted} begin?")))
        }
    }
}

/// The holes that a map lists within a part of the image, counted from the start of the part;
/// `None` if there is no map.
fn read_map(map: &Path, offset: u64, capacity: u64) -> Result<Option<Spans>, Failure> {
    let text = match std::fs::read_to_string(map) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::host(map, error)),
    };
    let holes = holes_of(&text).map_err(|error| Failure::host(map, std::io::Error::other(error)))?;
    let mut within = Spans::default();
    for hole in holes.iter() {
        let end = hole.end.saturating_sub(offset).min(capacity);
        within.insert(hole.start.saturating_sub(offset).min(end)..end);
    }
    Ok(Some(within))
}

/// The operation that the command performs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Rescue,
    Undelete,
}

impl Work {
    /// The word for a path with nothing left to recover.
    fn lost_word(self) -> &'static str {
        match self {
            Self::Rescue => "lost",
            Self::Undelete => "overwritten",
        }
    }
}

/// How paths are reported.
enum Style {
    /// All paths, on standard output.
    Text,
    Json {
        is_first: bool,
    },
    /// Prints only paths that are not whole, on standard error.
    Errors,
}

/// Printed before the first path, not earlier, so that nothing is printed if the volume cannot be
/// opened.
const JSON_START: &[u8] = b"{\"paths\": [\n";

/// Reports what became of each path as soon as it is known.
struct Listing<'a> {
    session: &'a mut Session,
    work: Work,
    place: &'a ImagePath,
    style: Style,
    progress: Progress,
    /// Set if standard output cannot be written.
    failure: Option<Failure>,
}

impl Listing<'_> {
    fn tell(&mut self, rescued: &Rescued) -> Result<(), Failure> {
        let state = match rescued.state {
            State::Lost => self.work.lost_word().to_owned(),
            state => state.to_string(),
        };
        let mut reasons = rescued.reasons.join("; ");
        if let Some(time) = rescued.deleted.filter(|_| self.work == Work::Undelete) {
            let separator = if reasons.is_empty() { "" } else { "; " };
            reasons = format!("deleted {time}{separator}{reasons}");
        }
        let path = quote(&[b"/", &rescued.path[..]].concat());
        match &mut self.style {
            Style::Json { is_first } => {
                let separator: &[u8] = if std::mem::take(is_first) { JSON_START } else { b",\n" };
                self.session.out.write(separator)?;
                json::print_compact(&mut self.session.out, &JsonRescued::new(rescued, state))
            }
            Style::Errors if rescued.state == State::Whole => Ok(()),
            Style::Errors => {
                let text = format!("{state} {path}: {reasons}");
                self.progress.suspend(|| self.session.complain(&text));
                Ok(())
            }
            Style::Text if reasons.is_empty() => outln!(self.session.out, "{state:<8} {path}"),
            Style::Text => {
                let reasons = extant_fs::printable(&reasons);
                outln!(self.session.out, "{state:<8} {path}: {reasons}")
            }
        }
    }

    fn end(&mut self, summary: &Summary) -> Result<(), Failure> {
        let Style::Json { is_first } = self.style else { return Ok(()) };
        if is_first {
            self.session.out.write(JSON_START)?;
        }
        self.session.out.write(b"\n], \"summary\": ")?;
        json::print_compact(&mut self.session.out, &JsonSummary::new(summary, self.work))?;
        self.session.out.write(b"}\n")
    }
}

impl Witness for Listing<'_> {
    fn rescued(&mut self, rescued: &Rescued) {
        if self.failure.is_none() {
            self.failure = self.tell(rescued).err();
        }
    }

    fn not_kept(&mut self, path: &[u8], loss: Loss) {
        let place = format!("{}:{}", self.place.image_quoted(), quote(&[b"/", path].concat()));
        self.progress.suspend(|| match loss.is_expected() {
            true => self.session.summary(&format!("{place} {loss}")),
            false => self.session.fail(Failure::NotKept { place, loss }),
        });
    }

    fn advanced(&mut self, bytes: u64) {
        self.progress.advance(bytes);
    }
}

#[derive(Serialize)]
struct JsonRescued<'a> {
    path: Bytes<'a>,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<json::Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deleted: Option<json::Time>,
    state: String,
    bytes: u64,
    lost_bytes: u64,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    reasons: &'a [String],
}

impl<'a> JsonRescued<'a> {
    fn new(rescued: &'a Rescued, state: String) -> Self {
        Self {
            path: Bytes(&rescued.path),
            kind: json::kind_name(rescued.kind),
            inode: rescued.inode.map(|inode| inode.0),
            modified: rescued.modified.map(Into::into),
            deleted: rescued.deleted.map(Into::into),
            state,
            bytes: rescued.bytes,
            lost_bytes: rescued.lost_bytes,
            reasons: &rescued.reasons,
        }
    }
}

#[derive(Serialize)]
struct JsonSummary<'a> {
    whole: u64,
    partial: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    overwritten: Option<u64>,
    left_out: u64,
    bytes: u64,
    lost_bytes: u64,
    unread_bytes: u64,
    notes: &'a [String],
}

impl<'a> JsonSummary<'a> {
    fn new(summary: &'a Summary, work: Work) -> Self {
        Self {
            whole: summary.whole,
            partial: summary.partial,
            lost: (work == Work::Rescue).then_some(summary.lost),
            overwritten: (work == Work::Undelete).then_some(summary.lost),
            left_out: summary.left_out,
            bytes: summary.bytes,
            lost_bytes: summary.lost_bytes,
            unread_bytes: summary.unread.bytes(),
            notes: &summary.notes,
        }
    }
}
