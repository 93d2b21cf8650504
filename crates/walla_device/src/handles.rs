//! Handles of objects on a device.

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u32);
    )*};
}

handles! {
    /// A weight matrix on a device.
    MatrixId
    /// A vector of f32 on a device.
    VectorId
    /// A RoPE table on a device.
    RopeId
    /// A cache on a device.
    CacheId
    /// Untyped device memory.
    BufferId
    /// Untyped pinned host memory for asynchronous copies, aligned to 64 bytes.
    HostId
    /// An ordered work queue.
    StreamId
    /// A completion event.
    EventId
    /// A prepared program.
    GraphId
}
