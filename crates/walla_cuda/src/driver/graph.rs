use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUresult, CUstreamCaptureMode};
use walla_device::DeviceError;

use super::objects::Object;
use super::{Context, Stream};

/// A captured graph, instantiated and uploaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GraphExec(CUgraphExec);

// SAFETY: a driver handle without thread affinity; see `Context`.
unsafe impl Send for GraphExec {}

impl Context {
    /// Captures the work that `enqueue` puts on the stream, and prepares the graph for launch.
    pub(crate) fn capture(
        &self,
        stream: Stream,
        enqueue: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<GraphExec, DeviceError> {
        self.begin_capture(stream)?;
        let enqueued = enqueue();
        self.end_capture(stream, enqueued)
    }

    /// Begins a capture on a stream. [`end_capture`](Self::end_capture) must follow.
    pub(crate) fn begin_capture(&self, stream: Stream) -> Result<(), DeviceError> {
        self.enter()?;
        self.count(|c| &mut c.captures);
        // Relaxed: calls of other threads (for example a renderer's) neither fail nor end the
        // capture.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is alive and not capturing: callers end every capture that they begin.
        let result = unsafe { sys::cuStreamBeginCapture_v2(stream.0, mode) };
        self.check("cuStreamBeginCapture", result)
    }

    /// Ends a capture and prepares the graph for launch, unless enqueueing failed.
    pub(crate) fn end_capture(
        &self,
        stream: Stream,
        enqueued: Result<(), DeviceError>,
    ) -> Result<GraphExec, DeviceError> {
        let mut graph: CUgraph = std::ptr::null_mut();
        // SAFETY: a capture is under way on this stream.
        let result = unsafe { sys::cuStreamEndCapture(stream.0, &raw mut graph) };
        let ended = self.check("cuStreamEndCapture", result);
        let instantiated = enqueued.and(ended).and_then(|()| self.instantiate(stream, graph));
        if !graph.is_null() && !self.is_lost() {
            // SAFETY: the executable graph does not need the one it was made from.
            let result = unsafe { sys::cuGraphDestroy(graph) };
            self.check("cuGraphDestroy", result)?;
        }
        instantiated
    }

    fn instantiate(&self, stream: Stream, graph: CUgraph) -> Result<GraphExec, DeviceError> {
        self.count(|c| &mut c.instantiations);
        let mut raw: CUgraphExec = std::ptr::null_mut();
        // SAFETY: `raw` lives through the call; the graph was just captured.
        let result = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut raw, graph, 0) };
        self.check("cuGraphInstantiate", result)?;
        self.keep(Object::Graph(raw));
        // SAFETY: both are alive.
        let result = unsafe { sys::cuGraphUpload(raw, stream.0) };
        self.check("cuGraphUpload", result)?;
        Ok(GraphExec(raw))
    }

    /// Enqueues one run of a graph.
    pub(crate) fn launch_graph(
        &self,
        stream: Stream,
        graph: &GraphExec,
    ) -> Result<(), DeviceError> {
        self.enter()?;
        self.count(|c| &mut c.graph_launches);
        // SAFETY: both are alive; the addresses in the graph belong to the device that owns it.
        let result: CUresult = unsafe { sys::cuGraphLaunch(graph.0, stream.0) };
        self.check("cuGraphLaunch", result)
    }
}
