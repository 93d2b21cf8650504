//! Observers that forward events as messages, so that the collect system has a single input.

use bevy_ecs::message::Messages;
use bevy_ecs::prelude::*;

use super::{CancelId, EngineBridge};
use crate::ask::{Ask, Cancel, CancelHeard, asks_written};

pub(crate) fn forward_ask(ask: On<Ask>, mut asks: ResMut<Messages<Ask>>) {
    asks.write(ask.event().clone());
}

/// Messages of two types have no order relative to each other, so the bridge records it.
pub(crate) fn forward_cancel(
    cancel: On<Cancel>,
    mut cancels: ResMut<Messages<Cancel>>,
    asks: Res<Messages<Ask>>,
    mut bridge: ResMut<EngineBridge>,
) {
    let cancel = cancels.write(*cancel.event());
    bridge.cancel_requested(CancelId::Cancel(cancel.id), asks_written(&asks));
}

pub(crate) fn forward_cancel_heard(
    cancel: On<CancelHeard>,
    mut cancels: ResMut<Messages<CancelHeard>>,
    asks: Res<Messages<Ask>>,
    mut bridge: ResMut<EngineBridge>,
) {
    let cancel = cancels.write(*cancel.event());
    bridge.cancel_requested(CancelId::CancelHeard(cancel.id), asks_written(&asks));
}
