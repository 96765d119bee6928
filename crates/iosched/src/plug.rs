//! Holds bios back for a moment, so that they arrive together.

use extant_block::{Bio, Device};

/// Maximum number of bios held back (Linux: `BLK_MAX_REQUEST_COUNT`).
const MOST: usize = 32;

/// Collects bios and submits them together, sorted by sector. Neighbours then meet in the queue
/// before the first of them has left, and starting them costs one system call.
///
/// Dropping the plug submits what it holds. Do not wait for a bio while it is in a plug.
#[derive(Debug)]
pub struct Plug<'a> {
    device: &'a dyn Device,
    held: Vec<Bio>,
}

impl<'a> Plug<'a> {
    /// An empty plug in front of `device`.
    pub fn new(device: &'a dyn Device) -> Self {
        Self { device, held: Vec::new() }
    }

    /// Holds `bio` back until the plug is full, released or dropped.
    pub fn submit(&mut self, bio: Bio) {
        self.held.push(bio);
        if self.held.len() >= MOST {
            self.release();
        }
    }

    /// Submits everything held back.
    pub fn release(&mut self) {
        // Stable: bios for the same sector keep their order.
        self.held.sort_by_key(|bio| bio.start);
        self.device.submit_all(&mut self.held.drain(..));
    }
}

impl Drop for Plug<'_> {
    fn drop(&mut self) {
        self.release();
    }
}
