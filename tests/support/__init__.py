"""Support code of the tests: servers, proxies and misbehaving endpoints that wirespeed talks to over loopback."""
