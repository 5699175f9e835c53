"""Real peers for the tests: servers, proxies and misbehaving endpoints that wirespeed talks to over loopback."""
