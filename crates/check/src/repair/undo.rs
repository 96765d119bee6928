//! The undo file: what every block held before a repair, durable before the first of them is
//! written.
//!
//! ```text
//! header (4 KiB) | table: block, old checksum, new checksum (16 bytes each) | old blocks
//! ```
//!
//! The header is written last and fits a sector, so it is there as a whole or not at all; without
//! it nothing of the volume was written. Its state says how far the repair has come.

use extant_block::{Buf, Device, IoError, Sector, flush, read, write};
use extant_format::crc32c;
use thiserror::Error;

/// Bytes of the header.
const HEADER_BYTES: usize = 4096;
/// Bytes of the header that its checksum covers.
const SEALED_BYTES: usize = 508;
const MAGIC: &[u8; 8] = b"ExtUndo1";
const ROW_BYTES: usize = 16;
/// Largest block of a volume.
const UNIT_MAX: usize = 64 << 10;

/// How far a repair has come, by its undo file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndoState {
    /// The volume is being written: any of the blocks may be old, new or torn.
    Open,
    /// All blocks are new.
    Done,
    /// The old blocks are being put back.
    Undoing,
    /// All blocks are old again.
    Undone,
}

impl UndoState {
    const ALL: [Self; 4] = [Self::Open, Self::Done, Self::Undoing, Self::Undone];

    fn code(self) -> u8 {
        match self {
            Self::Open => 1,
            Self::Done => 2,
            Self::Undoing => 3,
            Self::Undone => 4,
        }
    }
}

/// Why a repair was not made or undone.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum UndoError {
    /// The device or the undo file could not be read or written.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The undo file is empty or was not finished, so nothing of the volume was written.
    #[error("the undo file is not complete, so the repair had not begun to write; there is nothing to undo")]
    Empty,
    /// The undo file is damaged.
    #[error("the undo file is damaged: {0}; the volume was not changed")]
    Damaged(&'static str),
    /// It belongs to another volume.
    #[error("the undo file belongs to another volume, of {0} bytes")]
    Foreign(u64),
    /// A block is neither as before the repair nor as after it.
    #[error(
        "block {0} was changed after the repair; undoing it would mix old and new, so the volume was not changed"
    )]
    Changed(u64),
    /// The undo file has no room for the old blocks.
    #[error("the undo file has {have} bytes, {needed} are needed")]
    TooSmall {
        /// Its size.
        have: u64,
        /// Bytes that the old blocks need.
        needed: u64,
    },
}

/// A block and the checksums of its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    block: u64,
    old: u32,
    new: u32,
}

/// What an undo file says.
#[derive(Clone, Debug)]
pub struct UndoFile {
    state: UndoState,
    uuid: [u8; 16],
    capacity_bytes: u64,
    unit_bytes: usize,
    rows: Vec<Row>,
}

/// Bytes as a whole number of sectors, for a device.
fn padded(bytes: &[u8]) -> Buf {
    let mut buf = Buf::zeroed(bytes.len().next_multiple_of(HEADER_BYTES));
    buf[..bytes.len()].copy_from_slice(bytes);
    buf
}

fn sector(byte: u64) -> Sector {
    Sector::containing(byte)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

impl UndoFile {
    /// The length of an undo file for so many blocks.
    pub(super) fn bytes_for(blocks: usize, unit_bytes: usize) -> u64 {
        let table = (blocks * ROW_BYTES).next_multiple_of(HEADER_BYTES);
        let all = HEADER_BYTES + table + (blocks * unit_bytes).next_multiple_of(HEADER_BYTES);
        u64::try_from(all).unwrap_or(u64::MAX)
    }

    /// How far the repair has come.
    pub fn state(&self) -> UndoState {
        self.state
    }

    /// The UUID of the volume, as it was when the repair began.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Number of blocks that the repair changes.
    pub fn blocks(&self) -> usize {
        self.rows.len()
    }

    /// Whether it belongs to a device of this size.
    pub fn is_of(&self, volume: &dyn Device) -> bool {
        self.capacity_bytes == volume.limits().capacity_bytes
    }

    fn header(&self, state: UndoState) -> Buf {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8] = state.code();
        bytes[16..32].copy_from_slice(&self.uuid);
        bytes[32..40].copy_from_slice(&self.capacity_bytes.to_le_bytes());
        bytes[40..48].copy_from_slice(&u64::try_from(self.unit_bytes).unwrap_or(0).to_le_bytes());
        bytes[48..56].copy_from_slice(&u64::try_from(self.rows.len()).unwrap_or(0).to_le_bytes());
        bytes[56..60].copy_from_slice(&crc32c(!0, &self.table()).to_le_bytes());
        let sum = crc32c(!0, &bytes[..SEALED_BYTES]);
        bytes[SEALED_BYTES..SEALED_BYTES + 4].copy_from_slice(&sum.to_le_bytes());
        Buf::from_slice(&bytes)
    }

    fn table(&self) -> Vec<u8> {
        let row = |row: &Row| {
            let mut bytes = [0; ROW_BYTES];
            bytes[..8].copy_from_slice(&row.block.to_le_bytes());
            bytes[8..12].copy_from_slice(&row.old.to_le_bytes());
            bytes[12..].copy_from_slice(&row.new.to_le_bytes());
            bytes
        };
        self.rows.iter().flat_map(row).collect()
    }

    fn data_at(&self) -> u64 {
        let table = (self.rows.len() * ROW_BYTES).next_multiple_of(HEADER_BYTES);
        u64::try_from(HEADER_BYTES + table).unwrap_or(u64::MAX)
    }

    fn unit(&self) -> u64 {
        u64::try_from(self.unit_bytes).unwrap_or(u64::MAX)
    }

    /// Makes the old blocks durable, and then the header that says so.
    pub(super) async fn create(
        undo: &dyn Device,
        volume: &dyn Device,
        uuid: [u8; 16],
        unit_bytes: usize,
        edits: impl Iterator<Item = (u64, &[u8])>,
    ) -> Result<Self, UndoError> {
        let mut file = Self {
            state: UndoState::Open,
            uuid,
            capacity_bytes: volume.limits().capacity_bytes,
            unit_bytes,
            rows: Vec::new(),
        };
        let mut old = Vec::new();
        for (block, new) in edits {
            let bytes = read(volume, sector(block * file.unit()), unit_bytes).await?;
            file.rows.push(Row { block, old: crc32c(!0, &bytes), new: crc32c(!0, new) });
            old.extend_from_slice(&bytes);
        }
        let needed = Self::bytes_for(file.rows.len(), unit_bytes);
        let have = undo.limits().capacity_bytes;
        if have < needed {
            return Err(UndoError::TooSmall { have, needed });
        }
        if !file.rows.is_empty() {
            let first = u64::try_from(HEADER_BYTES).unwrap_or(u64::MAX);
            write(undo, sector(first), padded(&file.table())).await?;
            /// Bytes of one write.
            const PIECE: usize = 1 << 20;
            let mut at = file.data_at();
            for piece in old.chunks(PIECE) {
                write(undo, sector(at), padded(piece)).await?;
                at += u64::try_from(piece.len()).unwrap_or(0);
            }
        }
        flush(undo).await?;
        file.set_state(undo, UndoState::Open).await?;
        Ok(file)
    }

    /// Reads an undo file.
    ///
    /// # Errors
    /// It has no header, is damaged, or cannot be read.
    pub async fn read(undo: &dyn Device) -> Result<Self, UndoError> {
        let have = undo.limits().capacity_bytes;
        if usize::try_from(have).is_ok_and(|have| have < HEADER_BYTES) {
            return Err(UndoError::Empty);
        }
        let header = read(undo, Sector(0), HEADER_BYTES).await?;
        if header.iter().all(|&byte| byte == 0) {
            return Err(UndoError::Empty);
        }
        if &header[..8] != MAGIC {
            return Err(UndoError::Damaged("it does not begin as one"));
        }
        if word(&header, SEALED_BYTES) != crc32c(!0, &header[..SEALED_BYTES]) {
            return Err(UndoError::Damaged("the checksum of its header is wrong"));
        }
        let state = UndoState::ALL.into_iter().find(|state| state.code() == header[8]);
        let Some(state) = state else { return Err(UndoError::Damaged("it has an unknown state")) };
        let unit_bytes = usize::try_from(long(&header, 40)).unwrap_or(0);
        let count = usize::try_from(long(&header, 48)).unwrap_or(usize::MAX);
        if !(1024..=UNIT_MAX).contains(&unit_bytes) || !unit_bytes.is_power_of_two() {
            return Err(UndoError::Damaged("its blocks have an impossible length"));
        }
        let fits = u64::try_from(count).ok().and_then(|count| count.checked_mul(long(&header, 40)));
        if fits.is_none_or(|bytes| bytes > have) || Self::bytes_for(count, unit_bytes) > have {
            return Err(UndoError::Damaged("it is shorter than its header says"));
        }
        let uuid = header[16..].first_chunk().copied().unwrap_or_default();
        let capacity_bytes = long(&header, 32);
        let mut file = Self { state, uuid, capacity_bytes, unit_bytes, rows: Vec::new() };
        if count > 0 {
            let bytes = (count * ROW_BYTES).next_multiple_of(HEADER_BYTES);
            let table = read(undo, sector(4096), bytes).await?;
            let row = |row: &[u8]| Row { block: long(row, 0), old: word(row, 8), new: word(row, 12) };
            file.rows = table[..count * ROW_BYTES].chunks_exact(ROW_BYTES).map(row).collect();
        }
        if crc32c(!0, &file.table()) != word(&header, 56) {
            return Err(UndoError::Damaged("the checksum of its table is wrong"));
        }
        Ok(file)
    }

    pub(super) async fn set_state(&mut self, undo: &dyn Device, state: UndoState) -> Result<(), UndoError> {
        write(undo, Sector(0), self.header(state)).await?;
        flush(undo).await?;
        self.state = state;
        Ok(())
    }

    async fn old(&self, undo: &dyn Device, n: usize) -> Result<Buf, UndoError> {
        let at = self.data_at() + u64::try_from(n).unwrap_or(0) * self.unit();
        // Old blocks of 1 KiB may begin within a block of the device.
        let grain = u64::from(undo.limits().block_bytes).max(Sector::BYTES);
        let first = at / grain * grain;
        let skip = usize::try_from(at - first).unwrap_or(0);
        let len = (skip + self.unit_bytes).next_multiple_of(usize::try_from(grain).unwrap_or(512));
        let bytes = read(undo, sector(first), len).await?;
        Ok(Buf::from_slice(&bytes[skip..skip + self.unit_bytes]))
    }

    /// Puts all old blocks back, so that the volume is as before the repair, to the byte. Can be
    /// interrupted and run again.
    ///
    /// # Errors
    /// The undo file is damaged or of another volume; or the volume was changed after the repair.
    /// Then nothing is written. A device that fails leaves the rest to the next run.
    pub async fn undo(&mut self, volume: &dyn Device, undo: &dyn Device) -> Result<(), UndoError> {
        if !self.is_of(volume) {
            return Err(UndoError::Foreign(self.capacity_bytes));
        }
        if self.state == UndoState::Undone {
            return Ok(());
        }
        for (n, row) in self.rows.iter().enumerate() {
            if crc32c(!0, &self.old(undo, n).await?) != row.old {
                return Err(UndoError::Damaged("the checksum of an old block is wrong"));
            }
            if self.state == UndoState::Done {
                let now = read(volume, sector(row.block * self.unit()), self.unit_bytes).await?;
                let now = crc32c(!0, &now);
                if now != row.new && now != row.old {
                    return Err(UndoError::Changed(row.block));
                }
            }
        }
        self.set_state(undo, UndoState::Undoing).await?;
        for (n, row) in self.rows.iter().enumerate() {
            let old = self.old(undo, n).await?;
            write(volume, sector(row.block * self.unit()), old).await?;
        }
        flush(volume).await?;
        self.set_state(undo, UndoState::Undone).await
    }
}
