//! An archive's file: compressed as its name says, and under that name only when it is whole.

use flate2::write::GzEncoder;
use liblzma::write::XzEncoder;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::{Builder, TempPath};

/// How an archive is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
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
    /// From the end of a file's name; `None` if it promises one that is not written here.
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

/// A file being written. Until [`Archive::finish`] nothing is under its name, or what was there before.
pub struct Archive {
    encoder: Encoder,
    /// Where it is, and where it will be; `None` for what is written in place, like a pipe.
    pending: Option<(TempPath, PathBuf)>,
}

enum Encoder {
    None(BufWriter<File>),
    Gzip(GzEncoder<BufWriter<File>>),
    Zstd(zstd::Encoder<'static, BufWriter<File>>),
    Xz(XzEncoder<BufWriter<File>>),
}

impl Archive {
    /// Begins an archive that will be at `path`. A pipe or device there is written to as it is.
    pub fn create(path: &Path, compression: Compression) -> io::Result<Self> {
        let in_place = path.metadata().is_ok_and(|there| !there.is_file());
        let (file, pending) = if in_place {
            (OpenOptions::new().write(true).open(path)?, None)
        } else {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            // As open(2) would make it: the process's mask takes its part.
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

    /// Ends the archive and gives it its name.
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

/// The system's answer without the temporary name, which says nothing to the user.
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
