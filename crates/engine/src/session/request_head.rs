//! The head of the opening request, stored compactly: most applications read the header fields once or never, and idle
//! sessions keep them for days.

use wirespeed_driver::protocol::handshake::{HeaderList, Request};

use crate::config::routes;

/// The target and the header fields of a request.
pub(crate) struct RequestHead {
    /// The path, and the query after a question mark.
    target: Box<str>,
    /// Lines of a name, a colon and a value. Values contain no line breaks (RFC 9110 5.5).
    fields: Box<[u8]>,
}

impl RequestHead {
    pub(crate) fn new(request: &Request) -> Self {
        let size = request.headers.iter().map(|field| field.name().len() + field.value().len() + 2).sum();
        let mut fields = Vec::with_capacity(size);
        for field in &request.headers {
            fields.extend_from_slice(field.name().as_bytes());
            fields.push(b':');
            fields.extend_from_slice(field.value());
            fields.push(b'\n');
        }
        Self { target: routes::path_and_query(request).into(), fields: fields.into_boxed_slice() }
    }

    /// Returns the path, percent-encoded.
    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// Returns the query without its question mark, percent-encoded.
    pub(crate) fn query(&self) -> &str {
        self.target.split_once('?').map_or("", |(_, query)| query)
    }

    /// Returns the header fields.
    pub(crate) fn headers(&self) -> HeaderList {
        let mut headers = HeaderList::new();
        for line in self.fields.split(|byte| *byte == b'\n') {
            let mut parts = line.splitn(2, |byte| *byte == b':');
            if let (Some(name), Some(value)) = (parts.next(), parts.next()) {
                let name = str::from_utf8(name).unwrap_or_default();
                let pushed = headers.push(name, value);
                debug_assert!(pushed.is_ok(), "a field that was received is fit to be sent");
            }
        }
        headers
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests fail by panicking
mod tests {
    use wirespeed_driver::protocol::handshake::Version;

    use super::*;

    #[test]
    fn request_is_restored_completely() {
        let mut headers = HeaderList::new();
        for (name, value) in
            [("Host", "a:80"), ("X-Empty", ""), ("Cookie", "a=b; c=d"), ("Cookie", "e:f:"), ("X", "\u{e9}")]
        {
            headers.push(name, value).unwrap();
        }
        headers.push("Latin", [b'a', 0xe9, b'\t', b'b']).unwrap();
        let of = |target: &str| {
            let (method, target) = ("GET".to_owned(), target.to_owned());
            RequestHead::new(&Request { method, target, version: Version::Http11, headers: headers.clone() })
        };
        let head = of("/a/b?c=d?e#f");
        assert_eq!((head.path(), head.query()), ("/a/b", "c=d?e"));
        assert_eq!(head.headers(), headers);
        let head = of("http://host/a");
        assert_eq!((head.path(), head.query()), ("/a", ""));
    }
}
