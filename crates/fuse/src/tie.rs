//! A socket between two processes that mount together.

use crate::Device;
use crate::emulation::Listener;
use crate::inherit::inherited;
use rustix::io::FdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut, Read, Result, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// One end of the connection. If the other process ends, this one sees the connection closed.
#[derive(Debug)]
pub struct Tie(OwnedFd);

impl Tie {
    /// Creates both ends. A program that is started before the second one is dropped inherits it.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn pair() -> Result<(Self, Self)> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let (ours, theirs) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
        Ok((Self(ours), Self(theirs)))
    }

    /// Takes the end that this process was started with.
    ///
    /// # Errors
    /// There is no such descriptor, or it is one of the standard ones.
    pub fn inherited(number: i32) -> Result<Self> {
        let end = inherited(number)?;
        rustix::io::fcntl_setfd(&end, FdFlags::CLOEXEC)?;
        Ok(Self(end))
    }

    /// The number of the descriptor, to be passed to a program that inherits it.
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Tells the other process that a step is done.
    ///
    /// # Errors
    /// The other process has ended.
    pub fn tell(&self) -> Result<()> {
        rustix::net::send(&self.0, b".", SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits until the other process calls [`Self::tell`]. Returns false if it has ended.
    pub fn hear(&self) -> bool {
        let mut byte = [0];
        loop {
            match rustix::io::read(&self.0, &mut byte) {
                Err(rustix::io::Errno::INTR) => {}
                heard => return heard == Ok(1),
            }
        }
    }

    /// Passes the device of a mount to the other process.
    ///
    /// # Errors
    /// The other process has ended.
    pub fn send_device(&self, device: &Device) -> Result<()> {
        self.send(device.as_fd())
    }

    /// Passes the listener of a filter to the other process.
    ///
    /// # Errors
    /// The other process has ended.
    pub fn send_listener(&self, listener: &Listener) -> Result<()> {
        self.send(listener.as_fd())
    }

    fn send(&self, descriptor: BorrowedFd<'_>) -> Result<()> {
        let descriptors = [descriptor];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        rustix::net::sendmsg(&self.0, &[IoSlice::new(b".")], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for the device of a mount. `None` if the other process has ended.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn receive_device(&self) -> Result<Option<Device>> {
        Ok(self.receive()?.map(Device::new))
    }

    /// Waits for the listener of a filter. `None` if the other process has ended, or sends none.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn receive_listener(&self) -> Result<Option<Listener>> {
        Ok(self.receive()?.map(Listener::new))
    }

    fn receive(&self) -> Result<Option<OwnedFd>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut byte = [0];
        let mut parts = [IoSliceMut::new(&mut byte)];
        loop {
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC;
            match rustix::net::recvmsg(&self.0, &mut parts, &mut ancillary, flags) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
                Ok(_) => {}
            }
            let descriptors = ancillary.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            });
            return Ok(descriptors.flatten().next());
        }
    }
}

impl Read for Tie {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        Ok(rustix::io::read(&self.0, bytes)?)
    }
}

impl Write for Tie {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        Ok(rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
