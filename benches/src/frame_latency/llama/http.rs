//! The part of HTTP/1.1 that a stream of tokens from a local server needs.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Read timeout.
const MAX_SILENCE: Duration = Duration::from_secs(60);

/// Maximum length of an error's body in a message.
const MAX_REASON_BYTES: u64 = 400;

/// Requests a page and returns the status.
pub fn get(port: u16, path: &str) -> io::Result<u16> {
    let mut stream = connect(port)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    Ok(head(&mut BufReader::new(stream))?.status)
}

/// Posts JSON and returns the body as a stream.
pub fn post(port: u16, path: &str, body: &str) -> io::Result<Box<dyn BufRead>> {
    let mut stream = connect(port)?;
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )?;
    let mut reader = BufReader::new(stream);
    let head = head(&mut reader)?;
    if head.status != 200 {
        // The reason is in the body; a body that cannot be read is cut without a separate error.
        let mut reason = Vec::new();
        let _ended_early = reader.take(MAX_REASON_BYTES).read_to_end(&mut reason);
        let reason = String::from_utf8_lossy(&reason);
        return Err(io::Error::other(format!("status {}: {}", head.status, reason.trim())));
    }
    if head.is_chunked {
        return Ok(Box::new(BufReader::new(Chunked { inner: reader, left: 0 })));
    }
    Ok(Box::new(reader))
}

fn connect(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(MAX_SILENCE))?;
    Ok(stream)
}

struct Head {
    status: u16,
    is_chunked: bool,
}

fn head(reader: &mut impl BufRead) -> io::Result<Head> {
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(bad)?;
    let mut is_chunked = false;
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Err(bad());
        }
        let header = line.trim_end().to_ascii_lowercase();
        if header.is_empty() {
            return Ok(Head { status, is_chunked });
        }
        is_chunked |= header.starts_with("transfer-encoding:") && header.contains("chunked");
    }
}

/// The content of a chunked body: each chunk is preceded by its length in a line of hexadecimal
/// digits (RFC 9112, section 7.1).
struct Chunked<R> {
    inner: R,
    left: u64,
}

impl<R: BufRead> Read for Chunked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            self.left = self.next_chunk()?;
            if self.left == 0 {
                return Ok(0);
            }
        }
        let read = (&mut self.inner).take(self.left).read(buffer)?;
        self.left -= read as u64;
        Ok(read)
    }
}

impl<R: BufRead> Chunked<R> {
    fn next_chunk(&mut self) -> io::Result<u64> {
        let mut line = String::new();
        // The line after a chunk's bytes is empty.
        while line.trim().is_empty() {
            line.clear();
            if self.inner.read_line(&mut line)? == 0 {
                return Ok(0);
            }
        }
        let digits = line.trim().split(';').next().unwrap_or_default();
        u64::from_str_radix(digits, 16).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_joined() {
        let bytes = b"5\r\ndata:\r\n6; note\r\n one\n\n\r\n0\r\n\r\n";
        let mut text = String::new();
        Chunked { inner: &bytes[..], left: 0 }.read_to_string(&mut text).unwrap();
        assert_eq!(text, "data: one\n\n");
    }

    #[test]
    fn an_error_response_contains_its_reason() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut request, mut piece) = (Vec::new(), [0; 256]);
            while !request.ends_with(b"{}") {
                let read = stream.read(&mut piece).unwrap();
                request.extend_from_slice(&piece[..read]);
            }
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\nno slot is free\n").unwrap();
        });
        let error = post(port, "/completion", "{}").err().unwrap();
        server.join().unwrap();
        assert_eq!(error.to_string(), "status 400: no slot is free");
    }

    #[test]
    fn the_response_head_defines_status_and_encoding() {
        let bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nrest";
        let head = head(&mut &bytes[..]).unwrap();
        assert!(head.status == 200 && head.is_chunked);
        assert!(super::head(&mut &b"nonsense"[..]).is_err());
    }
}
