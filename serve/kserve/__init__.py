"""The server's end of KServe's v2 protocol (the Open Inference Protocol), over HTTP and gRPC."""
