//! The events of a response.

use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use eventsource_stream::{Event, EventStreamError, Eventsource};
use futures_util::stream::{self, Stream, StreamExt};
use reqwest::Response;
use walla_runtime::RemoteError;

use crate::http::reason;
use crate::options::SizeLimits;

/// The events of a response, in order.
pub(crate) type Events = Pin<Box<dyn Stream<Item = Result<Event, RemoteError>> + Send>>;

/// The events of a response, with bounded memory.
pub(crate) fn events(response: Response, sizes: SizeLimits) -> Events {
    let lines =
        stream::try_unfold((response, Lines::new(sizes)), |(mut response, mut lines)| async {
            while let Some(bytes) =
                response.chunk().await.map_err(|error| RemoteError::Interrupted(reason(&error)))?
            {
                if let Some(whole) = lines.push(&bytes)? {
                    return Ok(Some((whole, (response, lines))));
                }
            }
            // An event without its end is no event.
            Ok(None)
        });
    Box::pin(lines.eventsource().map(|event| {
        event.map_err(|error| match error {
            EventStreamError::Transport(error) => error,
            EventStreamError::Utf8(_) => RemoteError::Protocol("an event is not UTF-8".into()),
            EventStreamError::Parser(_) => RemoteError::Protocol("not a stream of events".into()),
        })
    }))
}

/// A whole response as the events of a stream: its JSON text, and the end.
pub(crate) fn whole(mut response: Response, sizes: SizeLimits) -> Events {
    let limit = sizes.response_bytes;
    let body = async move {
        let mut body = Vec::new();
        while let Some(bytes) =
            response.chunk().await.map_err(|error| RemoteError::Interrupted(reason(&error)))?
        {
            if bytes.len() > limit.saturating_sub(body.len()) {
                return Err(RemoteError::TooLarge { limit });
            }
            body.extend_from_slice(&bytes);
        }
        let body = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&body);
        let text = std::str::from_utf8(body)
            .map_err(|_| RemoteError::Protocol("a response is not UTF-8".into()))?;
        Ok(Event { data: text.to_owned(), ..Event::default() })
    };
    let end = Event { data: "[DONE]".to_owned(), ..Event::default() };
    Box::pin(stream::once(body).chain(stream::once(async { Ok(end) })))
}

/// U+FEFF in UTF-8.
const BYTE_ORDER_MARK: &[u8] = &[0xef, 0xbb, 0xbf];

/// Passes on whole lines, so that the parser keeps no more than one event, and reads each line
/// once.
#[derive(Debug)]
struct Lines {
    sizes: SizeLimits,
    /// The first bytes, until it is known whether they are a byte order mark.
    first: Option<Vec<u8>>,
    /// The begin of a line.
    held: BytesMut,
    /// Bytes since the last empty line.
    event_bytes: usize,
    /// Bytes since the last line end.
    line_bytes: usize,
    response_bytes: usize,
    /// The last byte was a carriage return, so that a line feed belongs to it.
    is_after_return: bool,
}

impl Lines {
    fn new(sizes: SizeLimits) -> Self {
        let held = BytesMut::new();
        let (event_bytes, line_bytes, response_bytes) = (0, 0, 0);
        let first = Some(Vec::new());
        let is_after_return = false;
        Self { sizes, first, held, event_bytes, line_bytes, response_bytes, is_after_return }
    }

    /// The whole lines so far, if there are any. A byte order mark is left out, as the standard of
    /// event streams demands.
    fn push(&mut self, bytes: &[u8]) -> Result<Option<Bytes>, RemoteError> {
        let Some(mut first) = self.first.take() else { return self.push_text(bytes) };
        first.extend_from_slice(bytes);
        if first.len() < BYTE_ORDER_MARK.len() && BYTE_ORDER_MARK.starts_with(&first) {
            self.first = Some(first);
            return Ok(None);
        }
        self.push_text(first.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&first))
    }

    fn push_text(&mut self, bytes: &[u8]) -> Result<Option<Bytes>, RemoteError> {
        let too_large = |limit| Err(RemoteError::TooLarge { limit });
        self.response_bytes = self.response_bytes.saturating_add(bytes.len());
        if self.response_bytes > self.sizes.response_bytes {
            return too_large(self.sizes.response_bytes);
        }
        let mut end = None;
        for (at, &byte) in bytes.iter().enumerate() {
            let is_rest_of_end = byte == b'\n' && self.is_after_return;
            self.is_after_return = byte == b'\r';
            self.event_bytes += 1;
            if is_rest_of_end {
                end = Some(at + 1);
            } else if byte == b'\n' || byte == b'\r' {
                if self.line_bytes == 0 {
                    self.event_bytes = 0;
                }
                self.line_bytes = 0;
                end = Some(at + 1);
            } else {
                self.line_bytes += 1;
            }
            if self.event_bytes > self.sizes.event_bytes {
                return too_large(self.sizes.event_bytes);
            }
        }
        self.held.extend_from_slice(bytes);
        let rest = end.map(|end| bytes.len() - end);
        Ok(rest.map(|rest| self.held.split_to(self.held.len() - rest).freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(event_bytes: usize, response_bytes: usize) -> SizeLimits {
        SizeLimits { event_bytes, response_bytes, ..SizeLimits::default() }
    }

    fn lines(text: &str, piece: usize, sizes: SizeLimits) -> Result<String, RemoteError> {
        lines_of(text.as_bytes(), piece, sizes)
    }

    fn lines_of(text: &[u8], piece: usize, sizes: SizeLimits) -> Result<String, RemoteError> {
        let mut lines = Lines::new(sizes);
        let mut whole = Vec::new();
        for bytes in text.chunks(piece) {
            whole.extend_from_slice(&lines.push(bytes)?.unwrap_or_default());
        }
        Ok(String::from_utf8_lossy(&whole).into_owned())
    }

    #[test]
    fn a_byte_order_mark_is_left_out() {
        for piece in 1..=12 {
            let text = "\u{feff}data: a\n\n\u{feff}b\n";
            let read = lines_of(text.as_bytes(), piece, SizeLimits::default()).unwrap();
            assert_eq!(read, "data: a\n\n\u{feff}b\n");
            let read = lines_of(b"\xef\xbb\n", piece, SizeLimits::default());
            assert!(read.is_ok(), "an incomplete one is text, or no UTF-8");
        }
    }

    #[test]
    fn only_whole_lines_are_passed_on() {
        let text = "data: größe\r\n\r\ndata: b\n\ndata: c\r\rdata: d";
        for piece in 1..=text.len() {
            assert_eq!(lines(text, piece, SizeLimits::default()).unwrap(), &text[..text.len() - 7]);
        }
    }

    #[test]
    fn events_and_responses_are_bounded() {
        let events = "data: 12345\r\n\r\n".repeat(10);
        assert!(lines(&events, 4, sizes(14, 150)).is_ok());
        let error = lines(&events, 4, sizes(12, 150)).unwrap_err();
        assert_eq!(error, RemoteError::TooLarge { limit: 12 });
        let error = lines(&events, 4, sizes(14, 100)).unwrap_err();
        assert_eq!(error, RemoteError::TooLarge { limit: 100 });
        // The line feeds of these lines are no empty lines.
        let one_event = "data: 1\r\n".repeat(10);
        assert!(lines(&one_event, 3, sizes(80, 1_000)).is_err());
        let no_end = "x".repeat(100);
        assert!(lines(&no_end, 7, sizes(50, 1_000)).is_err());
    }
}
