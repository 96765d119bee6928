//! Failures of commands, and their exit codes.

use crate::image_path::ImagePath;
use crate::parts;
use extant::{Part, PlaceError};
use extant_block::IoErrorKind;
use extant_format::{FOREIGN_HEAD_BYTES, Foreign};
use extant_fs::quote;
use extant_fuse::contain::{IdError, NamespaceError, RootError};
use extant_fuse::{MountError, SandboxError};
use extant_image::BuildError;
use extant_image::export::Loss;
use extant_lab::command::LabError;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use thiserror::Error;

/// Exit codes, as documented in `--help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exit {
    Done,
    /// Everything that was wrong has been repaired; a code of fsck(8).
    Repaired,
    Failed,
    Usage,
    Unsupported,
    Corrupt,
    /// `check` found something. This and the next codes are those of fsck(8).
    Findings,
    /// Something was repaired, and something is left.
    RepairedSome,
    CheckFailed,
    /// `check` found something, and did not see everything.
    FindingsIncomplete,
    CheckUsage,
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed | Self::Repaired => 1,
            Self::Usage => 2,
            Self::Corrupt => 3,
            Self::Unsupported | Self::Findings => 4,
            Self::RepairedSome => 5,
            Self::CheckFailed => 8,
            Self::FindingsIncomplete => 12,
            Self::CheckUsage => 16,
        }
    }
}

/// Exit code of a check that the user has interrupted, as in fsck(8).
pub(crate) const EXIT_CANCELLED: u8 = 32;

/// Exit code when the reader of standard output has closed it: 128 plus the number of SIGPIPE.
pub(crate) const EXIT_CLOSED: u8 = 128 + 13;

#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// The reader of standard output has closed it.
    #[error("standard output is closed")]
    Closed,
    #[error("standard output: {0}")]
    Stdout(io::Error),
    #[error("{path}: {error}")]
    Host { path: String, error: io::Error },
    /// There is no such image, but one whose name ends before a colon or a slash.
    #[error("{place}: no such file; a path in an image is written with a colon and a slash: {meant}")]
    Misspelt { place: String, meant: String },
    /// A path in an image, where only the image is to be named.
    #[error("{place}: no such file; this command takes the image alone: {image}")]
    ImageAlone { place: String, image: String },
    /// The image's name contains the separator of image and path, and was split there.
    #[error("{image}: there is no such image; the image {whole} is named {whole}:/")]
    Split { image: String, whole: String },
    #[error("{place}: {error}")]
    Volume { place: String, error: extant_fs::Error },
    /// The image is not written because another program uses it.
    #[error("{image}: in use by {by}, which holds a lock on it; {}", UNLOCK_ADVICE)]
    Locked { image: String, by: String },
    /// Like `Volume`, with a message that does not repeat the last part of the place.
    #[error("{told}")]
    Named { told: String, error: extant_fs::Error },
    /// No superblock was found.
    #[error("{image}: not an ext2, ext3 or ext4 volume, or one with a damaged superblock{advice}: {error}")]
    NoVolume { image: String, advice: &'static str, error: extant_fs::Error },
    /// The file is something else. `advice`, if any, replaces the advice for the format.
    #[error("{image}: {}, not an ext2, ext3 or ext4 volume; {}", foreign.name, advice.as_deref().unwrap_or(foreign.advice))]
    Foreign { image: String, foreign: Foreign, advice: Option<String> },
    /// The image, or the requested part of it, cannot be opened.
    #[error("{image}: {error}")]
    Place { image: String, error: PlaceError },
    /// There is no superblock at the requested place. `place` contains the image and the position.
    #[error("{place}; `extant info` lists backups, and --superblock auto finds one: {error}")]
    NoBackup { place: String, error: extant_fs::Error },
    #[error(transparent)]
    Build(BuildError),
    /// A failed build, with advice for the user.
    #[error("{error}; {advice}")]
    Advised { error: BuildError, advice: &'static str },
    #[error("{0}")]
    Usage(String),
    /// A command of a script failed; those before it took effect.
    #[error("line {number}: {failure}")]
    Line { number: usize, failure: Box<Failure> },
    /// A failure during a comparison; must not be mistaken for a difference.
    #[error("{0}")]
    Compare(Box<Failure>),
    /// A check that could not be made; must not be mistaken for damage.
    #[error("{0}")]
    Check(Box<Failure>),
    #[error("{place} {loss}")]
    NotKept { place: String, loss: Loss },
    #[error(transparent)]
    Mount(MountError),
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error(transparent)]
    Ids(#[from] IdError),
    #[error(transparent)]
    Root(#[from] RootError),
    #[error("the sandbox of the server: {0}; --no-sandbox serves without one")]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    Lab(LabError),
    #[error(transparent)]
    World(#[from] extant_rt::RtError),
}

/// What to do about another program's lock.
const UNLOCK_ADVICE: &str = "end that first, or use --force if it does not write to the image";

/// The program that holds a lock on a file, if the lock is why the file was refused.
fn locked_by(error: &io::Error) -> Option<&str> {
    match error.get_ref()?.downcast_ref()? {
        IoErrorKind::Locked { by } => Some(by),
        _ => None,
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Self {
        match &error {
            BuildError::Output { error: cause, .. } if locked_by(cause).is_some() => {
                Self::Advised { error, advice: UNLOCK_ADVICE }
            }
            _ => Self::Build(error),
        }
    }
}

impl From<LabError> for Failure {
    fn from(error: LabError) -> Self {
        match error {
            LabError::Output(error) => Self::stdout(error),
            error => Self::Lab(error),
        }
    }
}

impl Failure {
    /// Returns [`Failure::Split`] if there is no volume of the image's name, but the whole argument
    /// names a file.
    pub(crate) fn of_split(place: &ImagePath) -> Result<(), Self> {
        match place.whole_file() {
            Some(whole) => Err(Self::Split { image: place.image_quoted(), whole }),
            None => Ok(()),
        }
    }

    pub(crate) fn host(path: &Path, error: impl Into<io::Error>) -> Self {
        Self::Host { path: quote(path.as_os_str().as_bytes()), error: error.into() }
    }

    /// The failure for an image that could not be claimed.
    pub(crate) fn to_claim(image: &Path, error: io::Error) -> Self {
        match locked_by(&error) {
            Some(by) => Self::Locked { image: quote(image.as_os_str().as_bytes()), by: by.into() },
            None => Self::host(image, error),
        }
    }

    pub(crate) fn stdout(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Stdout(error),
        }
    }

    /// An error below a place. Errors that include a path do not repeat it.
    pub(crate) fn at(place: &ImagePath, error: extant_fs::Error) -> Self {
        use extant_fs::Error as E;
        let whole = matches!(
            error,
            E::NotFound(_) | E::NotADirectory(_) | E::IsADirectory(_) | E::NotAFile(_) | E::Loop(_)
        );
        let text = error.to_string();
        if whole && text.starts_with('/') {
            return Self::Volume { place: place.image_quoted(), error };
        }
        let name = place.file_name().map(|name| quote(name.as_bytes()) + ": ");
        match name.and_then(|name| Some(text.strip_prefix(&name)?.to_owned())) {
            Some(text) => Self::Named { told: format!("{}: {text}", place.quoted()), error },
            None => Self::Volume { place: place.quoted(), error },
        }
    }

    /// The failure for an image that could not be opened for reading; `superblock` is the offset
    /// given by the user.
    pub(crate) fn open(image: &Path, part: &Part, superblock: Option<u64>, error: extant_fs::Error) -> Self {
        match superblock {
            Some(at) if lacks_superblock(&error) => Self::NoBackup {
                place: format!("{}: no superblock at byte {at}", parts::described(image, part)),
                error,
            },
            _ => Self::not_opened(image, part, ", which --superblock or extant rescue may get round", error),
        }
    }

    /// The failure for an image that could not be rescued.
    pub(crate) fn open_to_rescue(image: &Path, part: &Part, error: extant_fs::Error) -> Self {
        Self::not_opened(image, part, ", which --superblock may get round", error)
    }

    /// The failure for an image that could not be opened for writing.
    pub(crate) fn open_to_change(image: &Path, part: &Part, error: extant_fs::Error) -> Self {
        let advice = ", which `extant recover --superblock auto` may put back";
        Self::not_opened(image, part, advice, error)
    }

    /// The failure for an image that could not be opened; `advice` may help with a damaged
    /// superblock.
    fn not_opened(path: &Path, part: &Part, advice: &'static str, error: extant_fs::Error) -> Self {
        let image = parts::described(path, part);
        match error {
            extant_fs::Error::Locked { by, .. } => Self::Locked { image, by },
            extant_fs::Error::Busy(_) => {
                let told = match extant_fuse::mounted_from(path) {
                    Some(at) => {
                        let at = quote(at.point.as_os_str().as_bytes());
                        format!("{image}: mounted on {at}; extant umount {at} frees it")
                    }
                    None => format!("{image}: in use by another command of extant; wait until it has ended"),
                };
                Self::Named { told, error }
            }
            error if lacks_superblock(&error) => match identify(path, part) {
                Some(foreign) => Self::Foreign { image, foreign, advice: None },
                None => Self::NoVolume { image, advice, error },
            },
            error => Self::Volume { place: image, error },
        }
    }

    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Volume { error, .. } | Self::Named { error, .. } | Self::NoVolume { error, .. } => {
                exit_of(error)
            }
            Self::Line { failure, .. } => failure.exit(),
            Self::Compare(failure) => failure.exit().max(Exit::Usage),
            Self::Check(failure) if failure.exit() == Exit::Usage => Exit::CheckUsage,
            Self::Check(_) => Exit::CheckFailed,
            Self::Usage(_) | Self::Build(BuildError::Options(_)) => Exit::Usage,
            Self::Lab(LabError::Job(_) | LabError::Machine(_) | LabError::Trace(_)) => Exit::Usage,
            _ => Exit::Failed,
        }
    }
}

/// Identifies the format of a file that has no superblock, if its first bytes allow it.
fn identify(path: &Path, part: &Part) -> Option<Foreign> {
    let mut head = Vec::new();
    if *part != Part::Whole {
        return None;
    }
    File::open(path).ok()?.take(FOREIGN_HEAD_BYTES as u64).read_to_end(&mut head).ok()?;
    Foreign::identify(&head)
}

/// Whether the data at the superblock's offset do not look like a superblock at all.
pub(crate) fn lacks_superblock(error: &extant_fs::Error) -> bool {
    use extant_format::{Corrupt, Place, Problem};
    matches!(
        error,
        extant_fs::Error::Corrupt(Corrupt {
            place: Place::Superblock,
            problem: Problem::Magic { .. } | Problem::Truncated { .. },
        })
    )
}

/// Exit code for a volume's error.
pub(crate) fn exit_of(error: &extant_fs::Error) -> Exit {
    use extant_block::Op;
    use extant_fs::Error as E;
    match error {
        E::Corrupt(_) | E::Lost(_) | E::LostMore { .. } | E::Replaced { .. } => Exit::Corrupt,
        // The volume refers to something past its own end, or the medium has a bad sector: EIO, or
        // ENODATA from a disk that is certain of it.
        E::Io(error) if error.kind == IoErrorKind::OutOfRange => Exit::Corrupt,
        E::Io(error) if error.op == Op::Read && matches!(error.kind, IoErrorKind::Os(5 | 61)) => {
            Exit::Corrupt
        }
        E::Unsupported { .. } | E::Encrypted(_) => Exit::Unsupported,
        _ => Exit::Failed,
    }
}
