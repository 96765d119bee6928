//! `extant diff`.

use crate::args::DiffArgs;
use crate::failure::{Exit, Failure};
use crate::image_path::ImagePath;
use crate::json::{self, Bytes, Time, hex, kind_name};
use crate::output::outln;
use crate::progress::Progress;
use crate::session::{Access, Session, used_bytes};
use extant_format::{DeviceNumber, FileKind, Inode, InodeFlags, SUPERBLOCK_MAGIC};
use extant_fs::{Follow, Volume, quote};
use extant_image::diff::{
    Difference, Fields, Options, Report, Side, TimeOf, Times, Tree, Unreadable, Value as VolumeValue,
    VolumeDifference, compare, compare_volumes,
};
use serde::Serialize;
use std::ffi::OsStr;
use std::fs::File;
use std::ops::ControlFlow::{self, Break, Continue};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Maximum number of bytes of an attribute value to print.
const VALUE_BYTES: usize = 64;

/// Runs the command. A failure must not be mistaken for a difference.
pub(crate) fn run(session: &mut Session, args: &DiffArgs) -> Result<(), Failure> {
    show(session, args).map_err(|failure| match failure {
        Failure::Closed => Failure::Closed,
        failure => Failure::Compare(Box::new(failure)),
    })
}

/// A place named by an argument.
enum Place {
    Image(ImagePath),
    Host(PathBuf),
}

/// A place after opening.
enum Opened {
    Image(Volume, Box<Inode>),
    Host(PathBuf),
}

/// Whether an argument names a path in an image.
fn names_path(arg: &OsStr) -> bool {
    arg.as_bytes().windows(2).any(|pair| pair == b":/")
}

/// Whether a host file is not an ext volume, so that it can only be compared as a file.
fn is_plain(path: &Path) -> bool {
    let mut magic = [0; 2];
    let at = 1024 + 0x38;
    path.is_file()
        && File::open(path).is_ok_and(|file| {
            file.read_exact_at(&mut magic, at).is_err() || magic != SUPERBLOCK_MAGIC.to_le_bytes()
        })
}

impl Place {
    /// `other` is the other argument. If that is a path in an image, a host file that holds no
    /// volume is compared as a file.
    fn parse(arg: &OsStr, other: &OsStr) -> Self {
        let path = Path::new(arg);
        let is_host = path.is_dir() || names_path(other) && is_plain(path);
        match !names_path(arg) && is_host {
            true => Self::Host(arg.into()),
            false => Self::Image(ImagePath::parse(arg.to_owned())),
        }
    }

    fn open(&self, session: &mut Session, args: &DiffArgs) -> Result<Opened, Failure> {
        match self {
            Self::Host(path) => Ok(Opened::Host(path.clone())),
            Self::Image(place) => {
                let volume = session.volume(place, &args.open, Access::Contents)?;
                let top = session.rt.block_on(place.resolve(&volume, Follow::No))?;
                let top = top.map_err(|error| Failure::at(place, error))?;
                Ok(Opened::Image(volume, Box::new(top)))
            }
        }
    }

    /// The failure for an error at `path` below this place.
    fn failure(&self, path: &[u8], error: Unreadable) -> Failure {
        match (self, error) {
            (Self::Image(place), Unreadable::Volume(error)) => {
                let place = ImagePath { image: place.image.clone(), path: place.below(path) };
                Failure::at(&place, error)
            }
            (Self::Host(top), Unreadable::Host(error)) => {
                Failure::host(&top.join(OsStr::from_bytes(path)), error)
            }
            (Self::Image(place), Unreadable::Host(error)) => Failure::host(&place.image, error),
            (Self::Host(top), Unreadable::Volume(error)) => {
                Failure::Volume { place: quote(top.as_os_str().as_bytes()), error }
            }
        }
    }
}

impl Opened {
    fn tree(&self) -> Tree<'_> {
        match self {
            Self::Image(volume, top) => Tree::Volume { volume, top },
            Self::Host(path) => Tree::Host(path),
        }
    }

    fn used_bytes(&self) -> u64 {
        match self {
            Self::Image(volume, _) => used_bytes(volume),
            Self::Host(_) => 0,
        }
    }
}

fn show(session: &mut Session, args: &DiffArgs) -> Result<(), Failure> {
    let places = [Place::parse(&args.a, &args.b), Place::parse(&args.b, &args.a)];
    if let [Place::Host(_), Place::Host(_)] = places {
        return Err(Failure::Usage("two directories of the host: one of the two must be an image".into()));
    }
    let fields = match args {
        DiffArgs { all_volume: true, .. } => Some(Fields::All),
        DiffArgs { volume: true, .. } => Some(Fields::Settings),
        _ => None,
    };
    if fields.is_some() && places.iter().any(|place| matches!(place, Place::Host(_))) {
        return Err(Failure::Usage("a directory of the host has no volume to compare".into()));
    }
    let (a, b) = (places[0].open(session, args)?, places[1].open(session, args)?);
    let times = match args {
        DiffArgs { ignore_times: true, .. } => Times::None,
        DiffArgs { all_times: true, .. } => Times::All,
        _ => Times::Modified,
    };
    let options = Options { times, brief: args.brief };
    let progress = Progress::new(a.used_bytes() + b.used_bytes(), session.quiet);
    let labels = [&args.a, &args.b].map(|arg| quote(arg.as_bytes()));
    if args.json {
        session.out.write(b"[")?;
    }
    let rt = session.rt.clone();
    let mut printer = Printer {
        session,
        args,
        places: &places,
        labels,
        progress,
        first: true,
        unread: 0,
        last_unread: None,
        ended: None,
    };
    let mut found = 0;
    if let (Some(fields), Opened::Image(a, _), Opened::Image(b, _)) = (fields, &a, &b) {
        found = printer.volumes(&compare_volumes(a.superblock(), b.superblock(), fields))?;
    }
    found += rt.block_on(compare(a.tree(), b.tree(), options, &mut printer))?;
    printer.progress.finish();
    let unread = printer.unread;
    if let Some(failure) = printer.ended {
        return Err(failure);
    }
    if found > 0 {
        session.exit_with(Exit::Failed);
    }
    if args.json {
        session.out.write(b"\n]\n")?;
        return Ok(());
    }
    let found = match found {
        0 => "no differences".to_owned(),
        1 => "1 difference".to_owned(),
        many => format!("{many} differences"),
    };
    session.summary(&match unread {
        0 => found,
        1 => format!("{found} in what could be read; 1 file or directory could not"),
        many => format!("{found} in what could be read; {many} files or directories could not"),
    });
    Ok(())
}

/// Prints differences as they are found.
struct Printer<'a> {
    session: &'a mut Session,
    args: &'a DiffArgs,
    places: &'a [Place; 2],
    labels: [String; 2],
    progress: Progress,
    first: bool,
    /// Number of files and directories that could not be read completely, and the last of them.
    unread: u64,
    last_unread: Option<(Side, Vec<u8>)>,
    /// Why printing ended.
    ended: Option<Failure>,
}

impl Printer<'_> {
    /// Prints the fields in which the volumes differ; returns the number of differences.
    fn volumes(&mut self, differences: &[VolumeDifference]) -> Result<u64, Failure> {
        if self.args.brief && !self.args.json {
            return match differences.is_empty() {
                true => Ok(0),
                false => outln!(self.session.out, "the volumes differ").map(|()| 1),
            };
        }
        for difference in differences {
            let VolumeDifference { field, a, b } = difference;
            if self.args.json {
                self.next()?;
                json::print_compact(&mut self.session.out, &JsonDifference::of_volumes(difference))?;
            } else {
                let field = field.replace('_', " ");
                outln!(self.session.out, "volume: {field}: {} -> {}", volume_value(a), volume_value(b))?;
            }
        }
        Ok(differences.len() as u64)
    }

    /// Starts the next element of the JSON array.
    fn next(&mut self) -> Result<(), Failure> {
        self.session.out.write(if std::mem::take(&mut self.first) { b"\n" } else { b",\n" })
    }
}

impl Report for Printer<'_> {
    fn difference(&mut self, path: &[u8], difference: &Difference) -> ControlFlow<()> {
        let path = [b"/", path].concat();
        let progress = &self.progress;
        let out = &mut self.session.out;
        let mut printed = Ok(());
        progress.suspend(|| {
            printed = match self.args.json {
                true => out
                    .write(if std::mem::take(&mut self.first) { b"\n" } else { b",\n" })
                    .and_then(|()| json::print_compact(out, &JsonDifference::new(&path, difference))),
                false => match difference {
                    Difference::Only(side, kind) => {
                        let label = &self.labels[*side as usize];
                        outln!(out, "only in {label}: {} ({})", quote(&path), kind_name(Some(*kind)))
                    }
                    _ if self.args.brief => outln!(out, "{} differs", quote(&path)),
                    _ => outln!(out, "{}: {}", quote(&path), describe(difference)),
                },
            };
        });
        match printed {
            Ok(()) => Continue(()),
            Err(failure) => {
                self.ended = Some(failure);
                Break(())
            }
        }
    }

    fn unreadable(&mut self, side: Side, path: &[u8], error: Unreadable) {
        // A file may lack several parts; count it once.
        if self.last_unread.as_ref().is_none_or(|(last, of)| (*last, &of[..]) != (side, path)) {
            self.unread += 1;
            self.last_unread = Some((side, path.to_vec()));
        }
        if self.args.json {
            let whole = [b"/", path].concat();
            let unread = JsonUnread::new(&whole, side, &error);
            let printed = self.next().and_then(|()| json::print_compact(&mut self.session.out, &unread));
            self.ended = self.ended.take().or(printed.err());
        }
        let failure = self.places[side as usize].failure(path, error);
        let (progress, session) = (&self.progress, &mut *self.session);
        progress.suspend(|| session.fail(Failure::Compare(Box::new(failure))));
    }

    fn advanced(&mut self, bytes: u64) {
        self.progress.advance(bytes);
    }
}

fn describe(difference: &Difference) -> String {
    let device = |device: &DeviceNumber| format!("{}:{}", device.major, device.minor);
    let flags = |flags: &InodeFlags| match flag_names(*flags).join(" ") {
        none if none.is_empty() => "none".to_owned(),
        names => names,
    };
    let path = |path: &Option<Vec<u8>>| match path {
        Some(path) => format!("another name of {}", quote(&[b"/", &path[..]].concat())),
        None => "a file of its own".to_owned(),
    };
    let (name, a, b) = match difference {
        Difference::Only(_, kind) => {
            return format!("is there on one side only ({})", kind_name(Some(*kind)));
        }
        Difference::Contents { first } => return format!("contents differ from byte {first} on"),
        Difference::Kind(a, b) => ("kind".into(), kind_name(Some(*a)).into(), kind_name(Some(*b)).into()),
        Difference::Mode(a, b) => ("mode".into(), format!("{a:04o}"), format!("{b:04o}")),
        Difference::Uid(a, b) => ("owner".into(), a.to_string(), b.to_string()),
        Difference::Gid(a, b) => ("group".into(), a.to_string(), b.to_string()),
        Difference::Project(a, b) => ("project".into(), a.to_string(), b.to_string()),
        Difference::Time(which, a, b) => (time_name(*which).replace('_', " "), a.to_string(), b.to_string()),
        Difference::Flags(a, b) => ("flags".into(), flags(a), flags(b)),
        Difference::Device(a, b) => ("device".into(), device(a), device(b)),
        Difference::Target(a, b) => ("target".into(), quote(a), quote(b)),
        Difference::Attribute { name, a, b } => (format!("attribute {}", quote(name)), value(a), value(b)),
        Difference::Links(a, b) => ("links".into(), path(a), path(b)),
        Difference::Size(a, b) => ("size".into(), a.to_string(), b.to_string()),
        other => return format!("{other:?}"),
    };
    format!("{name}: {a} -> {b}")
}

/// Formats an attribute value, truncated for printing.
fn value(bytes: &Option<Vec<u8>>) -> String {
    let Some(bytes) = bytes else { return "none".into() };
    let shown = &bytes[..bytes.len().min(VALUE_BYTES)];
    let is_text = std::str::from_utf8(bytes).is_ok_and(|text| !text.contains(char::is_control));
    let text = if is_text { format!("\"{}\"", quote(shown)) } else { format!("0x{}", hex(shown)) };
    match bytes.len() > VALUE_BYTES {
        true => format!("{text}... ({} bytes)", bytes.len()),
        false => text,
    }
}

/// Formats a field of a volume.
fn volume_value(value: &VolumeValue) -> String {
    match value {
        VolumeValue::Number(number) => number.to_string(),
        VolumeValue::Names(names) if names.is_empty() => "none".into(),
        VolumeValue::Names(names) => names.join(" "),
        VolumeValue::Text(text) => format!("\"{}\"", quote(text)),
        VolumeValue::Id(id) => json::uuid(id),
        VolumeValue::Time(time) => time.to_string(),
        other => format!("{other:?}"),
    }
}

fn flag_names(flags: InodeFlags) -> Vec<String> {
    flags.iter_names().map(|(name, _)| name.to_lowercase()).collect()
}

fn time_name(which: TimeOf) -> &'static str {
    match which {
        TimeOf::Access => "accessed",
        TimeOf::Modification => "modified",
        TimeOf::Change => "changed",
        TimeOf::Creation => "created",
    }
}

#[derive(Serialize)]
struct JsonDifference<'a> {
    /// Absent for differences between the volumes as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<Bytes<'a>>,
    /// The property that differs.
    what: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Bytes<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_byte: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    a: Option<Value<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    b: Option<Value<'a>>,
}

/// Something that could not be compared.
#[derive(Serialize)]
struct JsonUnread<'a> {
    path: Bytes<'a>,
    what: &'static str,
    side: &'static str,
    /// For contents: start of the unreadable part.
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    error: String,
}

impl<'a> JsonUnread<'a> {
    fn new(path: &'a [u8], side: Side, error: &Unreadable) -> Self {
        let side = if side == Side::A { "a" } else { "b" };
        let (offset, bytes, error) = match error {
            Unreadable::Volume(extant_fs::Error::Lost(lost)) => {
                (Some(lost.offset), Some(lost.bytes), lost.error.to_string())
            }
            other => (None, None, other.to_string()),
        };
        Self { path: Bytes(path), what: "unreadable", side, offset, bytes, error }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Value<'a> {
    Number(u64),
    Word(&'static str),
    Text(String),
    Words(Vec<String>),
    Bytes(Bytes<'a>),
    Device([u32; 2]),
    Time(Time),
}

impl<'a> JsonDifference<'a> {
    fn new(path: &'a [u8], difference: &'a Difference) -> Self {
        let number = |n: u64| Some(Value::Number(n));
        let kind = |kind: FileKind| Some(Value::Word(kind_name(Some(kind))));
        let bytes = |bytes: &'a [u8]| Some(Value::Bytes(Bytes(bytes)));
        let device = |device: DeviceNumber| Some(Value::Device([device.major, device.minor]));
        let (mut name, mut first_byte) = (None, None);
        let (what, a, b) = match difference {
            Difference::Only(Side::A, of) => ("only_in_a", kind(*of), None),
            Difference::Only(Side::B, of) => ("only_in_b", None, kind(*of)),
            Difference::Kind(a, b) => ("kind", kind(*a), kind(*b)),
            Difference::Mode(a, b) => ("mode", number((*a).into()), number((*b).into())),
            Difference::Uid(a, b) => ("uid", number((*a).into()), number((*b).into())),
            Difference::Gid(a, b) => ("gid", number((*a).into()), number((*b).into())),
            Difference::Project(a, b) => ("project", number((*a).into()), number((*b).into())),
            Difference::Time(of, a, b) => {
                (time_name(*of), Some(Value::Time((*a).into())), Some(Value::Time((*b).into())))
            }
            Difference::Flags(a, b) => {
                ("flags", Some(Value::Words(flag_names(*a))), Some(Value::Words(flag_names(*b))))
            }
            Difference::Device(a, b) => ("device", device(*a), device(*b)),
            Difference::Target(a, b) => ("target", bytes(a), bytes(b)),
            Difference::Attribute { name: of, a, b } => {
                name = Some(Bytes(of));
                ("xattr", a.as_deref().and_then(bytes), b.as_deref().and_then(bytes))
            }
            Difference::Links(a, b) => ("links", a.as_deref().and_then(bytes), b.as_deref().and_then(bytes)),
            Difference::Size(a, b) => ("size", number(*a), number(*b)),
            Difference::Contents { first } => {
                first_byte = Some(*first);
                ("contents", None, None)
            }
            _ => ("other", None, None),
        };
        Self { path: Some(Bytes(path)), what, name, first_byte, a, b }
    }

    fn of_volumes(difference: &'a VolumeDifference) -> Self {
        let value = |value: &'a VolumeValue| match value {
            VolumeValue::Number(number) => Value::Number(*number),
            VolumeValue::Names(names) => Value::Words(names.clone()),
            VolumeValue::Text(text) => Value::Bytes(Bytes(text)),
            VolumeValue::Time(time) => Value::Time((*time).into()),
            other => Value::Text(volume_value(other)),
        };
        let VolumeDifference { field, a, b } = difference;
        let name = Some(Bytes(field.as_bytes()));
        Self { path: None, what: "volume", name, first_byte: None, a: Some(value(a)), b: Some(value(b)) }
    }
}
