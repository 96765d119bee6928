//! Getting a connection.

use super::handshake::{Export, negotiate};
use super::{NbdAddress, NbdError, NbdTarget};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A connected socket.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Connects and negotiates, blocking, for `patience` at most at each step; then the socket does not block any more.
pub(super) fn connect(target: &NbdTarget, patience: Duration) -> Result<(Socket, Export), NbdError> {
    let mut socket = match &target.address {
        NbdAddress::Tcp(host, port) => {
            let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
            let mut addresses = (host.as_str(), *port).to_socket_addrs()?;
            loop {
                let Some(address) = addresses.next() else { return Err(last.into()) };
                match TcpStream::connect_timeout(&address, patience) {
                    Ok(stream) => {
                        // Requests are small and must not wait for each other.
                        stream.set_nodelay(true)?;
                        break Socket::Tcp(stream);
                    }
                    Err(error) => last = error,
                }
            }
        }
        NbdAddress::Unix(path) => Socket::Unix(UnixStream::connect(path)?),
    };
    socket.set_timeout(Some(patience))?;
    let export = negotiate(&mut socket, &target.export).map_err(|error| match error {
        NbdError::Io(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            NbdError::Silent
        }
        NbdError::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof => NbdError::Closed,
        other => other,
    })?;
    socket.set_timeout(None)?;
    match &socket {
        Socket::Tcp(stream) => stream.set_nonblocking(true)?,
        Socket::Unix(stream) => stream.set_nonblocking(true)?,
    }
    Ok((socket, export))
}

impl Socket {
    fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout))
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout))
            }
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buf),
            Self::Unix(stream) => stream.read(buf),
        }
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read_vectored(bufs),
            Self::Unix(stream) => stream.read_vectored(bufs),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(buf),
            Self::Unix(stream) => stream.write(buf),
        }
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write_vectored(bufs),
            Self::Unix(stream) => stream.write_vectored(bufs),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}
