//! A socket that serves the counters of a mount.

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Maximum length of a request to read, in bytes.
const REQUEST_MAX: usize = 8192;
/// How long a client may take to send or receive each part.
const PATIENCE: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
/// Maximum number of parts in which a request of 8 KiB and a reply of 64 KiB arrive, with pieces of
/// 4 KiB.
const PARTS_MAX: usize = 24;
/// Pause after a failed accept, such as when too many files are open.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// A Unix socket that speaks HTTP, for Prometheus and `curl --unix-socket`. Must be bound before
/// the sandbox begins. The monitor removes the socket's file once the server has ended.
#[derive(Debug)]
pub struct MetricsSocket {
    listener: UnixListener,
    /// Closing one end of this pair ends [`Self::serve`].
    running: Mutex<Option<UnixStream>>,
    ended: UnixStream,
}

impl MetricsSocket {
    /// Binds the socket, replacing one left behind by a server that was killed.
    ///
    /// # Errors
    /// Another server listens at `path`, the file there is not a socket, or the socket cannot be
    /// bound.
    pub fn bind(path: &Path) -> Result<Self> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                // Connecting to a regular file is refused with the same error.
                if !path.symlink_metadata()?.file_type().is_socket() {
                    return Err(Error::other("there is a file that is no socket"));
                }
                match UnixStream::connect(path) {
                    Err(dead) if dead.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
                    _ => return Err(Error::other("another process listens there")),
                }
                UnixListener::bind(path)?
            }
            bound => bound?,
        };
        let (running, ended) = UnixStream::pair()?;
        Ok(Self { listener, running: Mutex::new(Some(running)), ended })
    }

    /// Answers requests with `text` until [`Self::end`] is called. Blocks the thread.
    pub fn serve(&self, text: impl Fn() -> String) {
        loop {
            let mut ready =
                [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.ended, PollFlags::IN)];
            match rustix::event::poll(&mut ready, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
                Ok(_) if !ready[1].revents().is_empty() => return,
                Ok(_) => {}
            }
            match self.listener.accept() {
                // Ignore errors: the client may have gone.
                Ok((client, _)) => drop(self.answer(&client, &text)),
                Err(_) => {
                    let _ = rustix::event::poll(&mut [PollFd::new(&self.ended, PollFlags::IN)], Some(&PAUSE));
                }
            }
        }
    }

    /// Ends [`Self::serve`].
    pub fn end(&self) {
        drop(self.running.lock().take());
    }

    /// Waits for a client, within limits, because other clients and the end of the server wait for
    /// this one.
    fn wait(&self, client: &UnixStream, want: PollFlags, parts: &mut usize) -> Result<()> {
        *parts += 1;
        let mut ready = [PollFd::new(client, want), PollFd::new(&self.ended, PollFlags::IN)];
        match rustix::event::poll(&mut ready, Some(&PATIENCE))? {
            0 => Err(ErrorKind::TimedOut.into()),
            _ if !ready[1].revents().is_empty() || *parts > PARTS_MAX => Err(ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }

    fn answer(&self, mut client: &UnixStream, text: impl Fn() -> String) -> Result<()> {
        // Do not use an ioctl: the sandbox does not allow it.
        let flags = rustix::fs::fcntl_getfl(client)?;
        rustix::fs::fcntl_setfl(client, flags | rustix::fs::OFlags::NONBLOCK)?;
        let (mut request, mut parts) = (Vec::new(), 0);
        while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_MAX {
            self.wait(client, PollFlags::IN, &mut parts)?;
            let mut part = [0; 1024];
            match client.read(&mut part)? {
                0 => break,
                bytes => request.extend_from_slice(&part[..bytes]),
            }
        }
        let answer = match request.starts_with(b"GET ") {
            true => {
                let text = text();
                format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
                     Connection: close\r\n\r\n{text}",
                    text.len()
                )
            }
            false => "HTTP/1.1 405 Method Not Allowed\r\nAllow: GET\r\nContent-Length: 0\r\n\
                      Connection: close\r\n\r\n"
                .to_owned(),
        };
        let mut rest = answer.as_bytes();
        while !rest.is_empty() {
            self.wait(client, PollFlags::OUT, &mut parts)?;
            let sent = client.write(rest)?;
            rest = &rest[sent..];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_answered_and_a_dead_socket_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        std::fs::write(&path, "no socket").unwrap();
        let refused = MetricsSocket::bind(&path).unwrap_err();
        assert!(refused.to_string().contains("no socket"), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), b"no socket");
        std::fs::remove_file(&path).unwrap();
        drop(MetricsSocket::bind(&path).unwrap());
        let socket = MetricsSocket::bind(&path).unwrap();
        let refused = MetricsSocket::bind(&path).unwrap_err();
        assert!(refused.to_string().contains("another process"), "{refused}");
        let ask = |request: &[u8]| {
            let mut client = UnixStream::connect(&path).unwrap();
            client.write_all(request).unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            answer
        };
        let rt = extant_rt::Rt::real(Default::default());
        let socket = std::sync::Arc::new(socket);
        let serving = socket.clone();
        let served = rt.spawn_blocking("metrics", move || serving.serve(|| "counter 1\n".to_owned()));
        let answer = ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\ncounter 1\n"),
            "{answer}"
        );
        assert!(ask(b"PUT / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        socket.end();
        rt.block_on(served).unwrap().unwrap();
    }
}
