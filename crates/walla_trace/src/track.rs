/// A row of the trace file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Track {
    /// Host frames, on whichever threads the host's systems run.
    Host,
    /// The thread that owns the device.
    DeviceThread,
    /// The thread that encodes prompts.
    Text,
    /// The device's program, by the device's clock.
    Device,
    /// Results in flight to the host.
    Copies,
}

impl Track {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Host => "host frame",
            Self::DeviceThread => "device thread",
            Self::Text => "text thread",
            Self::Device => "device",
            Self::Copies => "device copies",
        }
    }
}
