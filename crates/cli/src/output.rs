//! Standard output, in large writes.

use crate::failure::Failure;
use std::fs::File;
use std::io::{BufWriter, Write};

pub(crate) struct Output {
    to: Result<BufWriter<File>, std::io::ErrorKind>,
}

impl Output {
    pub(crate) fn stdout() -> Self {
        let to = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 0)
            .map(|fd| BufWriter::with_capacity(256 << 10, File::from(fd)))
            .map_err(|errno| std::io::Error::from(errno).kind());
        Self { to }
    }

    /// Writes to a file or pipe instead.
    pub(crate) fn to(file: File) -> Self {
        Self { to: Ok(BufWriter::with_capacity(256 << 10, file)) }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.as_write()?.write_all(bytes).map_err(Failure::stdout)
    }

    pub(crate) fn line(&mut self, line: std::fmt::Arguments<'_>) -> Result<(), Failure> {
        let to = self.as_write()?;
        to.write_fmt(line).and_then(|()| to.write_all(b"\n")).map_err(Failure::stdout)
    }

    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        match &mut self.to {
            Ok(to) => to.flush().map_err(Failure::stdout),
            // The output was never written to, which is fine for commands without output.
            Err(_) => Ok(()),
        }
    }

    /// A duplicate of the descriptor.
    pub(crate) fn duplicate(&mut self) -> Result<File, Failure> {
        self.as_write()?.get_ref().try_clone().map_err(Failure::stdout)
    }

    pub(crate) fn as_write(&mut self) -> Result<&mut BufWriter<File>, Failure> {
        self.to.as_mut().map_err(|kind| Failure::Stdout((*kind).into()))
    }
}

/// Prints one line of output.
macro_rules! outln {
    ($out:expr, $($arg:tt)*) => { $out.line(format_args!($($arg)*)) };
}
pub(crate) use outln;
