//! Connects to a server.

use super::handshake::{Export, negotiate};
use super::{NbdAddress, NbdError, NbdTarget};
use extant_rt::{Nanos, Rt};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A connected socket.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Connects and negotiates, blocking for at most `patience`; afterwards the socket is non-blocking.
pub(super) fn connect(rt: &Rt, target: &NbdTarget, patience: Nanos) -> Result<(Socket, Export), NbdError> {
    let deadline = Deadline { rt, at: rt.now().saturating_add(patience) };
    let connected = open(&target.address, &deadline).and_then(|socket| {
        let mut patient = Patient { socket, deadline: &deadline };
        let export = negotiate(&mut patient, &target.export)?;
        let socket = patient.socket;
        socket.set_timeout(None)?;
        match &socket {
            Socket::Tcp(stream) => stream.set_nonblocking(true)?,
            Socket::Unix(stream) => stream.set_nonblocking(true)?,
        }
        Ok((socket, export))
    });
    connected.map_err(|error| match error {
        NbdError::Io(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            NbdError::Silent
        }
        NbdError::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof => NbdError::Closed,
        other => other,
    })
}

fn open(address: &NbdAddress, deadline: &Deadline<'_>) -> Result<Socket, NbdError> {
    match address {
        NbdAddress::Tcp(host, port) => {
            let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
            for address in (host.as_str(), *port).to_socket_addrs()? {
                match TcpStream::connect_timeout(&address, deadline.left()?) {
                    Ok(stream) => {
                        // Requests are small and must not wait for each other.
                        stream.set_nodelay(true)?;
                        return Ok(Socket::Tcp(stream));
                    }
                    Err(error) => last = error,
                }
            }
            Err(last.into())
        }
        NbdAddress::Unix(path) => Ok(Socket::Unix(open_unix(path, deadline.left()?)?)),
    }
}

fn open_unix(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // If a server's queue of connections is full, connecting waits (unix(7)), up to the send
    // timeout.
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// When the server's time is up.
struct Deadline<'a> {
    rt: &'a Rt,
    at: Nanos,
}

impl Deadline<'_> {
    fn left(&self) -> io::Result<Duration> {
        match self.at.saturating_sub(self.rt.now()) {
            Nanos::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Duration::from_nanos(left.0)),
        }
    }
}

/// A socket whose reads and writes block until one common deadline.
struct Patient<'a> {
    socket: Socket,
    deadline: &'a Deadline<'a>,
}

impl Read for Patient<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.socket.set_timeout(Some(self.deadline.left()?))?;
        self.socket.read(buf)
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.socket.set_timeout(Some(self.deadline.left()?))?;
        self.socket.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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
