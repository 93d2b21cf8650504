//! Graphs of programs: capture at load, and launch.

use walla_device::{DeviceError, GraphFallbacks, GraphId, LaunchMode, Program};

use super::CudaDevice;
use crate::driver::{GraphExec, Launch, Stream};
use crate::enqueue;
use crate::lower::{Lowering, Workspace};
use crate::resources::unknown;

impl CudaDevice {
    /// Enqueues a program: its graph, or its launches one by one.
    pub(crate) fn enqueue_program(
        &mut self,
        stream: Stream,
        graph: GraphId,
    ) -> Result<(), DeviceError> {
        let programs = &mut self.resources.programs;
        let program = programs.get_mut(graph.0 as usize).ok_or_else(|| unknown(&graph))?;
        // The launch of a graph cannot be captured into another graph, single launches can.
        if let Some(exec) = program.graph.as_ref().filter(|_| !self.is_capturing) {
            match self.context.launch_graph(stream, exec) {
                // The graph did not run, so single launches can replace it.
                Err(DeviceError::Failed { .. }) => {
                    program.graph = None;
                    self.fallbacks.launch_failed += 1;
                }
                launched => return launched,
            }
        }
        enqueue::enqueue(&self.context, stream, &program.launches)
    }

    /// The launches of a program, with the addresses of a workspace.
    pub(super) fn lower(
        &mut self,
        program: &Program,
        workspace: &mut Workspace,
    ) -> Result<Vec<Launch>, DeviceError> {
        let Self { info, context, kernels, resources, warpgroups, .. } = self;
        Lowering::new(&info.name, context, kernels, resources, program, workspace, *warpgroups)
            .launches()
    }

    /// Captures launches as a graph. If that fails, counts the fallback and returns the reason.
    ///
    /// # Errors
    /// Only [`DeviceError::Lost`].
    pub(super) fn capture_program(
        &mut self,
        launches: &[Launch],
    ) -> Result<(Option<GraphExec>, LaunchMode), DeviceError> {
        if let Some(reason) = &self.eager {
            self.fallbacks.switched_off += 1;
            return Ok((None, LaunchMode::Eager(reason.clone())));
        }
        let enqueue = || enqueue::enqueue(&self.context, self.capture, launches);
        match self.context.capture(self.capture, enqueue) {
            Ok(graph) => Ok((Some(graph), LaunchMode::Graph)),
            Err(lost) if lost.is_lost() => Err(lost),
            Err(error) => {
                let call = if let DeviceError::Failed { call, .. } = error { call } else { "" };
                let is_refused = matches!(call, "cuGraphInstantiate" | "cuGraphUpload");
                let GraphFallbacks { incompatible_node, capture_failed, .. } = &mut self.fallbacks;
                *(if is_refused { incompatible_node } else { capture_failed }) += 1;
                Ok((None, LaunchMode::Eager(format!("capture failed: {error}"))))
            }
        }
    }
}
