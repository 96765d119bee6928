//! Costs of the request queue.

extant_rt::costs! {
    /// Work of the request queue. Every bio is charged here once, whichever layer submits it.
    pub enum Cost of "iosched" {
        /// Building bios and handing them to their queue.
        BioSubmit = "bio_submit_ns",
        /// Adding segments to bios.
        BioSegment = "bio_segment_ns",
        /// Trying to merge a bio, sorting it in, or choosing the next one.
        ElevatorStep = "elevator_step_ns",
        /// Starting a command on a device.
        DeviceStart = "device_start_ns",
        /// Completing bios, including the interrupt.
        BioComplete = "bio_complete_ns",
    }
}
