"""Where the policy is trained: in this process or on an Arbor server."""
