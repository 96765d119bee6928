//! Errors of NBD servers and URIs.

use std::io;

/// Why no connection could be made, or why it was lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    /// The address is not a valid URI.
    #[error("{uri} is not an NBD URI: {why}")]
    Uri {
        /// The address as given.
        uri: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The server cannot be reached, or the connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// No answer in time.
    #[error("the server does not answer")]
    Silent,
    /// The server speaks the oldstyle protocol, without options.
    #[error(
        "the server speaks the oldstyle protocol; start it in newstyle mode (nbdkit -n; qemu-nbd does by itself)"
    )]
    Oldstyle,
    /// The server refuses the export.
    #[error("the export '{export}' is refused: {reason}{}{message}", if .message.is_empty() { "" } else { ": " })]
    Refused {
        /// The export's name.
        export: String,
        /// The protocol's name for the reason.
        reason: &'static str,
        /// The server's message.
        message: String,
    },
    /// After a reconnection, the export is no longer the same.
    #[error("the export has changed while the connection was lost")]
    Changed,
    /// A virtual world has no network.
    #[error("a virtual world has no network")]
    Virtual,
    /// A message does not start with its magic number.
    #[error("protocol: the {what} starts with {found:#x}")]
    Magic {
        /// Which message.
        what: &'static str,
        /// The value it starts with.
        found: u64,
    },
    /// A reply to a different option than the last one sent.
    #[error("protocol: option {asked} was asked, {answered} answered")]
    OtherOption {
        /// The option that was sent.
        asked: u32,
        /// The option that was answered.
        answered: u32,
    },
    /// A reply that does not belong to the option.
    #[error("protocol: option {option} is answered with {kind:#x}")]
    OptionReply {
        /// The option.
        option: u32,
        /// The kind of the reply.
        kind: u32,
    },
    /// An implausibly long option reply.
    #[error("protocol: an option reply of {0} bytes")]
    OptionLength(u32),
    /// Information about the export has the wrong length.
    #[error("protocol: {0} bytes of information about the export")]
    InfoLength(usize),
    /// The server grants the export without stating its size.
    #[error("protocol: the export is given without its size")]
    NoExportInfo,
    /// Block sizes are not powers of two, or not in order.
    #[error("protocol: block sizes {0:?}")]
    BlockSizes([u32; 3]),
    /// An answer to an unknown request, or to one that was not completely sent yet.
    #[error("protocol: a reply to nothing that was asked, cookie {0:#x}")]
    Cookie(u64),
    /// A chunk has the wrong length.
    #[error("protocol: a chunk of kind {kind} and {length} bytes")]
    ChunkLength {
        /// Its kind.
        kind: u16,
        /// Its length.
        length: u32,
    },
    /// A chunk of a kind that we did not ask for.
    #[error("protocol: a chunk of unknown kind {0}")]
    ChunkKind(u16),
    /// A chunk without content must be the last one.
    #[error("protocol: an empty chunk that is not the last")]
    NothingNotDone,
    /// A read was answered in a form that was not negotiated.
    #[error("protocol: a {0} reply to a read, which was not agreed on")]
    Form(&'static str),
    /// Data for something other than a read.
    #[error("protocol: data in the reply to a command that reads nothing")]
    UnexpectedData,
    /// Data outside the requested range, or twice for the same place.
    #[error("protocol: {bytes} bytes of data at {offset}, which was not asked for or has been answered")]
    Place {
        /// Offset from the start of the export.
        offset: u64,
        /// Number of bytes.
        bytes: u32,
    },
    /// A read was answered only in part.
    #[error("protocol: a read of {asked} bytes is answered with {got}")]
    Incomplete {
        /// Bytes asked for.
        asked: u64,
        /// Bytes received.
        got: u64,
    },
}

impl NbdError {
    /// Whether the server violated the protocol, so that retrying is useless.
    pub(super) fn is_protocol(&self) -> bool {
        !matches!(
            self,
            Self::Uri { .. }
                | Self::Io(_)
                | Self::Closed
                | Self::Silent
                | Self::Oldstyle
                | Self::Refused { .. }
                | Self::Changed
                | Self::Virtual
        )
    }
}
