"""What kubelet and a container runtime do with the manifests of mount/kubernetes, as a mount sees it."""
