//! An archive file, compressed according to its name, which it takes only once it is complete.

use flate2::write::GzEncoder;
use liblzma::write::XzEncoder;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::{Builder, TempPath};

/// Compression of an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// None.
    #[default]
    None,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
    /// xz.
    Xz,
}

impl Compression {
    /// Determined by the file name's extension; `None` for a format that cannot be written here.
    pub fn of(path: &Path) -> Option<Self> {
        Some(match path.extension().and_then(OsStr::to_str) {
            Some("gz" | "tgz") => Self::Gzip,
            Some("zst" | "tzst") => Self::Zstd,
            Some("xz" | "txz") => Self::Xz,
            Some("bz2" | "tbz" | "tbz2" | "lz" | "lz4" | "lzma" | "Z") => return None,
            _ => Self::None,
        })
    }
}

/// An archive being written. Until [`Archive::finish`], its name is absent or still refers to the
/// previous file.
pub struct Archive {
    encoder: Encoder,
    /// Temporary and final path; `None` if written in place, as to a pipe.
    pending: Option<(TempPath, PathBuf)>,
}

enum Encoder {
    None(BufWriter<File>),
    Gzip(GzEncoder<BufWriter<File>>),
    Zstd(zstd::Encoder<'static, BufWriter<File>>),
    Xz(XzEncoder<BufWriter<File>>),
}

impl Archive {
    /// Starts an archive that will appear at `path`. An existing pipe or device is written in
    /// place.
    pub fn create(path: &Path, compression: Compression) -> io::Result<Self> {
        let in_place = path.metadata().is_ok_and(|there| !there.is_file());
        let (file, pending) = if in_place {
            (OpenOptions::new().write(true).open(path)?, None)
        } else {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            // Same mode as from open(2), subject to the umask.
            let mut builder = Builder::new();
            let builder = builder.permissions(Permissions::from_mode(0o666));
            let temporary = builder.tempfile_in(parent.unwrap_or(Path::new("."))).map_err(cause)?;
            let (file, temporary) = temporary.into_parts();
            (file, Some((temporary, path.to_path_buf())))
        };
        let file = BufWriter::with_capacity(256 << 10, file);
        let encoder = match compression {
            Compression::None => Encoder::None(file),
            Compression::Gzip => Encoder::Gzip(GzEncoder::new(file, flate2::Compression::default())),
            Compression::Zstd => Encoder::Zstd(zstd::Encoder::new(file, zstd::DEFAULT_COMPRESSION_LEVEL)?),
            Compression::Xz => Encoder::Xz(XzEncoder::new(file, 6)),
        };
        Ok(Self { encoder, pending })
    }

    /// Completes the archive and gives it its name.
    pub fn finish(self) -> io::Result<()> {
        let file = match self.encoder {
            Encoder::None(file) => file,
            Encoder::Gzip(encoder) => encoder.finish()?,
            Encoder::Zstd(encoder) => encoder.finish()?,
            Encoder::Xz(encoder) => encoder.finish()?,
        };
        file.into_inner().map_err(io::IntoInnerError::into_error)?;
        if let Some((temporary, path)) = self.pending {
            temporary.persist(path).map_err(|failed| failed.error)?;
        }
        Ok(())
    }

    fn encoder(&mut self) -> &mut dyn Write {
        match &mut self.encoder {
            Encoder::None(file) => file,
            Encoder::Gzip(encoder) => encoder,
            Encoder::Zstd(encoder) => encoder,
            Encoder::Xz(encoder) => encoder,
        }
    }
}

/// The system's error without the temporary name, which means nothing to the user.
fn cause(error: io::Error) -> io::Error {
    let source = error.get_ref().and_then(|path_error| path_error.source());
    let errno = source.and_then(|e| e.downcast_ref::<io::Error>()).and_then(io::Error::raw_os_error);
    errno.map_or(error, io::Error::from_raw_os_error)
}

impl Write for Archive {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.encoder().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.encoder().flush()
    }
}
