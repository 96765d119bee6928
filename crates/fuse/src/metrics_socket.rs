//! A socket on which a server tells its counters.

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Longest request that is looked at.
const REQUEST_MAX: usize = 8192;
/// How long a client may take to ask, and to read a part of the answer.
const PATIENCE: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// A Unix socket that answers whoever connects in HTTP, as Prometheus and `curl --unix-socket` ask.
/// It has to be made before the server's sandbox. The process that outlives the server removes its
/// file.
#[derive(Debug)]
pub struct MetricsSocket {
    listener: UnixListener,
    /// Closing one end of this pair ends [`Self::serve`].
    running: Mutex<Option<UnixStream>>,
    ended: UnixStream,
}

impl MetricsSocket {
    /// Makes it. What a server that was killed has left there is replaced.
    ///
    /// # Errors
    /// Another server has it, or it cannot be made there.
    pub fn bind(path: &Path) -> Result<Self> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
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

    /// Answers with `text` until [`Self::end`]. Blocks the thread.
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
            if let Ok((client, _)) = self.listener.accept() {
                // It may have gone.
                let _ = answer(&client, &text);
            }
        }
    }

    /// Ends [`Self::serve`].
    pub fn end(&self) {
        drop(self.running.lock().take());
    }
}

/// Waits for a client, which must not keep the others waiting for ever.
fn wait(client: &UnixStream, want: PollFlags) -> Result<()> {
    match rustix::event::poll(&mut [PollFd::new(client, want)], Some(&PATIENCE))? {
        0 => Err(ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

fn answer(mut client: &UnixStream, text: impl Fn() -> String) -> Result<()> {
    // Not by an ioctl, which the sandbox does not allow.
    let flags = rustix::fs::fcntl_getfl(client)?;
    rustix::fs::fcntl_setfl(client, flags | rustix::fs::OFlags::NONBLOCK)?;
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_MAX {
        wait(client, PollFlags::IN)?;
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
        wait(client, PollFlags::OUT)?;
        let sent = client.write(rest)?;
        rest = &rest[sent..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_answered_and_a_dead_socket_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
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
