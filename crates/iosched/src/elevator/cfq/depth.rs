//! Estimates whether the device takes several commands at once, by observation.

use super::Cfq;

/// A device that has had this many requests at once queues commands.
const QUEUEING_DEPTH: u32 = 5;
/// Samples under load before a device is considered not to queue.
const SAMPLES: u32 = 50;

/// The estimate of the device's depth so far.
#[derive(Debug, Default)]
pub(super) struct DepthEstimate {
    most: u32,
    samples: u32,
    /// `None` until known. Counts as queueing meanwhile, so that the device's depth can show.
    queues: Option<bool>,
}

impl Cfq {
    /// Whether the device has no seeks and queues commands, so that idling only costs time.
    pub(super) fn seekless_depth(&self) -> bool {
        !self.tunables.rotational && self.depth.queues != Some(false)
    }

    /// Called at each completion, before the completion is counted.
    pub(super) fn update_depth_estimate(&mut self) {
        let depth = &mut self.depth;
        depth.most = depth.most.max(self.in_device);
        if depth.queues == Some(true) {
            return;
        }
        if self.queued <= QUEUEING_DEPTH as usize && self.in_device <= QUEUEING_DEPTH {
            return;
        }
        // An active queue that idles with little queued does not test the device.
        if let Some(active) = self.active.map(|id| self.queues.get(id.0))
            && active.idle_window
            && active.dispatched + active.queued < QUEUEING_DEPTH
            && self.in_device < QUEUEING_DEPTH
        {
            return;
        }
        depth.samples += 1;
        if depth.samples > SAMPLES {
            depth.queues = Some(depth.most >= QUEUEING_DEPTH);
        }
    }
}
